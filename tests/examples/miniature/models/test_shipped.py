"""The package's weights load as any checkpoint does."""

import random

import pytest
import torch
from PIL import Image

from reflectune.examples.miniature.models.architecture import FAMILIES
from reflectune.examples.miniature.world.passage_lessons import Librarian
from reflectune.models.loading import load
from reflectune.retrieval.encoders.checkpoints import find_checkpoint
from reflectune.retrieval.encoders.encoder import load_encoder
from reflectune.retrieval.encoders.settings import TextSettings
from reflectune.retrieval.encoders.text_encoder import TextEncoder


@pytest.mark.parametrize("family", FAMILIES)
def test_a_base_model_loads_without_reflection_tokens(family: str) -> None:
    loaded = load(f"miniature/{family}")
    assert not loaded.is_tuned
    assert "[Retrieval]" not in loaded.processor.tokenizer.get_vocab()


def test_the_text_retriever_finds_the_fact_that_is_asked_for_in_words_it_never_met() -> None:
    """Held-out looks and phrasings, facts invented here; the mark is 95 % in one article."""
    encoder = TextEncoder(find_checkpoint("miniature/text"), TextSettings(), torch.device("cpu"), "")
    examiner = Librarian(random.Random(99), held_out=True)
    for articles in (1, 5):
        right = []
        for _ in range(30):
            exam = examiner.exam(articles)
            scores = (encoder.encode_passages(exam.passages) @ encoder.encode_queries(exam.questions)[0]).tolist()
            best = max(set(range(len(scores))) - set(exam.neutral[0]), key=scores.__getitem__)
            right.append(best == exam.gold[0])
        assert sum(right) >= 29


def test_the_encoder_tells_a_red_image_from_a_blue_one() -> None:
    encoder = load_encoder("miniature/clip")
    vectors = encoder.encode_images([Image.new("RGB", (96, 96), colour) for colour in ("red", "red", "blue")])
    assert vectors[0] @ vectors[1] > vectors[0] @ vectors[2]

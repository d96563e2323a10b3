"""The package's weights load as any checkpoint does."""

import random

import torch

from reflectune.examples.miniature.world.passage_lessons import Librarian
from reflectune.retrieval.encoders.checkpoints import find_checkpoint
from reflectune.retrieval.encoders.settings import TextSettings
from reflectune.retrieval.encoders.text_encoder import TextEncoder


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

"""An encoder of images and texts as a reranker: its scores are dot products of the encoder's own vectors."""

import dataclasses

import numpy as np
import pytest
from PIL import Image

from reflectune.core.errors import UserError
from reflectune.models.rendering.turns import passage_text
from reflectune.retrieval.encoders.encoder import load_encoder
from reflectune.retrieval.rerankers.base import ImageReranker
from reflectune.retrieval.rerankers.config import RerankerConfig
from reflectune.retrieval.rerankers.loading import load_reranker, open_reranker

QUESTIONS = ["What does the owl eat?", "Is it tall?"]


@pytest.fixture
def images() -> list[Image.Image]:
    return [Image.new("RGB", (30, 40), colour) for colour in ("teal", "orange")]


def test_a_clips_scores_are_of_the_sum_of_question_and_image(passages, images) -> None:
    reranker, clip = load_reranker("encoder", "miniature/clip"), load_encoder("miniature/clip")
    ranked = reranker.rank_with_images(QUESTIONS, images, [passages, passages[:2]], [{}, {}])
    queries = clip.encode_images(images) + clip.encode_texts(QUESTIONS)
    queries /= np.linalg.norm(queries, axis=1, keepdims=True)
    for query, found, choice in zip(queries, ranked, [passages, passages[:2]], strict=True):
        vectors = clip.encode_texts([passage_text(passage) for passage in choice])
        expected = dict(zip([passage.id for passage in choice], vectors @ query, strict=True))
        assert {one.passage.id: one.score for one in found} == pytest.approx(expected, abs=1e-5)
        assert [one.score for one in found] == sorted((one.score for one in found), reverse=True)


def test_a_language_model_reads_question_and_image_together(passages, images) -> None:
    name = "vlm2vec:miniature/llava"
    (ranked,) = load_reranker("encoder", name).rank_with_images(QUESTIONS[:1], images[:1], [passages], [{}], 2)
    encoder = load_encoder(name)
    vectors = encoder.encode_texts([passage_text(passage) for passage in passages])
    scores = vectors @ encoder.encode_pairs(images[:1], QUESTIONS[:1])[0]
    assert [one.score for one in ranked] == pytest.approx(sorted(scores, reverse=True)[:2], abs=1e-5)


def test_the_first_512_words_of_a_passage_are_read(passages, images) -> None:
    reranker = load_reranker("encoder", "vlm2vec:miniature/llava")
    long = [dataclasses.replace(passages[0], heading="", text=f"{'owl ' * 600}{end}") for end in ("", "by night")]
    (ranked,) = reranker.rank_with_images(QUESTIONS[:1], images[:1], [long], [{}])
    assert ranked[0].score == ranked[1].score
    assert reranker.rank_with_images(QUESTIONS[:1], images[:1], [[]], [{}]) == [[]]


def test_an_encoder_reranker_needs_the_image_and_one_space(passages) -> None:
    reranker = open_reranker(RerankerConfig(reranker="encoder", reranker_model="miniature/clip"))
    assert isinstance(reranker, ImageReranker)
    with pytest.raises(UserError, match="needs the question's image"):
        reranker.rank(QUESTIONS[:1], [passages])
    with pytest.raises(UserError, match="has a separate space for texts"):
        load_reranker("encoder", "pair:miniature/clip+miniature/text")

"""Rerankers give the CPU's scores on a simulated GPU."""

from types import ModuleType
from typing import Any

import pytest
from PIL import Image

from reflectune.retrieval.rerankers.loading import load_reranker

QUESTIONS = ["What does the owl eat?", "Is it tall?"]
IMAGES = [Image.new("RGB", (30, 40), colour) for colour in ("teal", "orange")]


@pytest.mark.filterwarnings("ignore:.*will be slower")
@pytest.mark.parametrize("kind", ["embedding", "cross_encoder", "encoder"])
def test_scores_are_the_cpus(kind: Any, cross_folder: str, passages: list[Any], pretended: ModuleType) -> None:
    model = {"embedding": "miniature/text", "cross_encoder": cross_folder, "encoder": "miniature/clip"}[kind]

    def scores(device: str) -> list[dict[str, float]]:
        reranker: Any = load_reranker(kind, model, device=device)
        choices = [passages, passages[:2]]
        if kind == "encoder":
            ranked = reranker.rank_with_images(QUESTIONS, IMAGES, choices, [{}, {}])
        else:
            ranked = reranker.rank(QUESTIONS, choices)
        return [{one.passage.id: one.score for one in found} for found in ranked]

    expected = scores("cpu")
    with pretended.gpus():
        actual = scores("cuda")
    for found, wanted in zip(actual, expected, strict=True):
        assert found == pytest.approx(wanted, abs=1e-5)

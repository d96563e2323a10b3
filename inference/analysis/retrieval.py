"""Retrievers for grid points: one that searches for an image once, and one that finds what it should."""

from __future__ import annotations

from collections.abc import Sequence

from PIL import Image

from reflectune.core.types import Question
from reflectune.retrieval.retriever import Retriever
from reflectune.retrieval.types import Hit


class RememberingRetriever:
    """Finds what its retriever finds, and keeps it until `forget`; images are told apart by identity."""

    def __init__(self, retriever: Retriever) -> None:
        """Bind the retriever."""
        self._retriever = retriever
        self._found: dict[tuple[int, int], tuple[Image.Image, list[Hit]]] = {}

    def search(self, images: Sequence[Image.Image], top_n: int) -> list[list[Hit]]:
        """As the retriever's; only what is new is searched for."""
        new = {(id(image), top_n): image for image in images if (id(image), top_n) not in self._found}
        if new:
            found = self._retriever.search(list(new.values()), top_n)
            self._found.update({key: (new[key], hits) for key, hits in zip(new, found, strict=True)})
        return [self._found[id(image), top_n][1] for image in images]

    def forget(self) -> None:
        """Drop what was found."""
        self._found.clear()


class GoldRetriever:
    """An oracle: for each image the entries that its question is about, with a retrieval score of 1.

    A retriever sees images alone, so `expect` tells it beforehand whose they are.
    """

    def __init__(self) -> None:
        """Expect nothing yet."""
        self._expected: dict[int, tuple[Image.Image, Question]] = {}

    def expect(self, questions: Sequence[Question], images: Sequence[Image.Image]) -> None:
        """Say which question each image belongs to, in place of what was said before."""
        self._expected = {id(image): (image, question) for question, image in zip(questions, images, strict=True)}

    def search(self, images: Sequence[Image.Image], top_n: int) -> list[list[Hit]]:
        """The gold entries of each image's question, at most `top_n`."""
        return [_gold(self._expected[id(image)][1])[:top_n] for image in images]


def _gold(question: Question) -> list[Hit]:
    told = [evidence.entry_id for evidence in question.evidence] or question.entity_ids[:1]
    return [Hit(entry_id, score=1.0, rank=rank, query="gold") for rank, entry_id in enumerate(dict.fromkeys(told), 1)]

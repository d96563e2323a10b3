"""Interface of rerankers, which sort passages by how well they fit a question."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from PIL import Image

from reflectune.core.errors import UserError
from reflectune.core.types import Passage
from reflectune.retrieval.stores.base import Vectors, inner


@dataclass(frozen=True)
class ScoredPassage:
    """A passage with its score for a question. Scores of different rerankers are not comparable."""

    passage: Passage
    score: float


class Reranker(Protocol):
    """Ranks each question's passages.

    Attributes:
        name: Name in messages and reports, e.g. `words` or `embedding Salesforce/SFR-Embedding-Mistral`.
        fingerprint: Hash of everything that the scores depend on, including the weights.
    """

    name: str
    fingerprint: str

    def rank(
        self, questions: Sequence[str], passages: Sequence[Sequence[Passage]], top_k: int | None = None
    ) -> list[list[ScoredPassage]]:
        """Return the `top_k` best passages of each question, best first; equal scores keep their order.

        Args:
            questions: Texts, one per list of passages.
            passages: Candidates of each question; a list may be empty.
            top_k: Number of passages to return, at least 1; None returns all.
        """
        ...


class ImageReranker(ABC):
    """Ranks each question's passages by the question and its image."""

    name: str
    fingerprint: str

    def rank(
        self, questions: Sequence[str], passages: Sequence[Sequence[Passage]], top_k: int | None = None
    ) -> list[list[ScoredPassage]]:
        """Refuse to rank without images.

        Raises:
            UserError: Always.
        """
        raise UserError(
            f"the reranker {self.name} needs the question's image, which this command or pipeline doesn't "
            "give it; set `reranker` to words, embedding or cross_encoder"
        )

    @abstractmethod
    def rank_with_images(
        self,
        questions: Sequence[str],
        images: Sequence[Image.Image],
        passages: Sequence[Sequence[Passage]],
        entry_scores: Sequence[Mapping[str, float]],
        top_k: int | None = None,
    ) -> list[list[ScoredPassage]]:
        """Rank as `Reranker.rank`, given each question's image and the retrieval scores of its entries by entry id."""


def best_first(passages: Sequence[Passage], scores: Sequence[float], top_k: int | None) -> list[ScoredPassage]:
    """Return the `top_k` passages with the highest scores; equal scores keep their order."""
    order = sorted(range(len(passages)), key=lambda index: -scores[index])
    return [ScoredPassage(passages[index], scores[index]) for index in order[:top_k]]


def rank_by_vectors(
    questions: Vectors,
    passages: Sequence[Sequence[Passage]],
    texts: Sequence[Sequence[str]],
    encode: Callable[[list[str]], Vectors],
    top_k: int | None,
) -> list[list[ScoredPassage]]:
    """Rank passages by the inner products of vectors. Each distinct text is encoded once.

    Args:
        questions: Vectors, shape (questions, dimensions).
        passages: Candidates of each question.
        texts: Text of each candidate.
        encode: Returns vectors of texts, shape (texts, dimensions).
        top_k: Number of passages to return; None returns all.
    """
    row_of = distinct_rows(texts)
    if not row_of:
        return [[] for _ in passages]
    vectors = encode(list(row_of))
    return [
        best_first(candidates, inner(vectors[[row_of[text] for text in own_texts]], question).tolist(), top_k)
        for question, candidates, own_texts in zip(questions, passages, texts, strict=True)
    ]


def distinct_rows(texts: Sequence[Sequence[str]]) -> dict[str, int]:
    """Number the distinct texts, in order."""
    return {text: row for row, text in enumerate(dict.fromkeys(itertools.chain.from_iterable(texts)))}

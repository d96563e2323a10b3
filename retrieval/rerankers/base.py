"""Interface of rerankers: passages in, the same passages best first with their scores out."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from PIL import Image

from reflectune.core.errors import UserError
from reflectune.core.types import Passage


@dataclass(frozen=True)
class ScoredPassage:
    """A passage and how well it fits a question; scores of different rerankers must not be compared."""

    passage: Passage
    score: float


class Reranker(Protocol):
    """Ranks each question's passages.

    Attributes:
        name: For messages and reports, e.g. `words` or `embedding Salesforce/SFR-Embedding-Mistral`.
        fingerprint: A hash of everything that its scores depend on, the weights included.
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
    """Ranks each question's passages by the question and its image; see `Reranker`."""

    name: str
    fingerprint: str

    def rank(
        self, questions: Sequence[str], passages: Sequence[Sequence[Passage]], top_k: int | None = None
    ) -> list[list[ScoredPassage]]:
        """Refuse questions without their images.

        Raises:
            UserError: Always.
        """
        raise UserError(
            f"the reranker {self.name} reads a question with its image, which is not given here: it picks the passages "
            "of naive_rag and build_plain, and orders those of mrag (`rerank: reranker`); take `words` or `embedding`"
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
        """Rank as `Reranker.rank`, with an image of each question, and its entries' retrieval scores by entry id."""


def best_first(passages: Sequence[Passage], scores: Sequence[float], top_k: int | None) -> list[ScoredPassage]:
    """Return the `top_k` passages with the highest scores; equal scores keep their order."""
    order = sorted(range(len(passages)), key=lambda place: (-scores[place], place))
    return [ScoredPassage(passages[place], scores[place]) for place in order[:top_k]]


def places_of(texts: Sequence[Sequence[str]]) -> dict[str, int]:
    """Return the place of each distinct text among them all, so that each is read once."""
    return {text: place for place, text in enumerate(dict.fromkeys(itertools.chain.from_iterable(texts)))}

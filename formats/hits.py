"""Results of a retriever."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from reflectune.core.types import Passage


@dataclass(frozen=True)
class Hit:
    """A retrieved entry.

    Attributes:
        entry_id: The entry.
        score: Ranking score; for `EntryRetriever` equation 3 of mR²AG, in [-1, 1].
        rank: 1 for the best.
        query: Kind of query: `image`, `text`, or `image and text`.
        kb: Name of the entry's knowledge base.
        parts: Unweighted terms of the score, e.g. `{"image": 0.8, "title": 0.2}`; see `Weights`.
    """

    entry_id: str
    score: float
    rank: int
    query: str = "image"
    kb: str = ""
    parts: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class PassageHit:
    """A retrieved passage.

    Attributes:
        passage: The passage.
        score: Ranking score: similarity to the query, or a reranker's score.
        rank: 1 for the best.
        kb: Name of the passage's knowledge base.
        parts: Known scores by name, e.g. in a retrieved entry `{"entry": 0.5, "passage": 7.1, "image": 0.8}`.
    """

    passage: Passage
    score: float
    rank: int
    kb: str = ""
    parts: Mapping[str, float] = field(default_factory=dict)

"""What a retriever returns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from reflectune.core.types import Passage


@dataclass(frozen=True)
class Hit:
    """One retrieved entry.

    Attributes:
        entry_id: The entry.
        score: What entries are ranked by; for `EntryRetriever` equation 3 of mR²AG, in [-1, 1].
        rank: 1 for the best.
        query: What was searched with, e.g. `image`, `text`, or `image and text`.
        kb: Name of the knowledge base that the entry is from.
        parts: What the score is made of, unweighted, e.g. `{"image": 0.8, "title": 0.2}`; see `Weights`.
    """

    entry_id: str
    score: float
    rank: int
    query: str = "image"
    kb: str = ""
    parts: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class PassageHit:
    """One retrieved passage.

    Attributes:
        passage: The passage.
        score: What passages are ranked by: their similarity to the query, or what a reranker says.
        rank: 1 for the best.
        kb: Name of the knowledge base that it is from.
        parts: What is known of it, e.g. of one inside a retrieved entry `{"entry": 0.5, "passage": 7.1, "image": 0.8}`.
    """

    passage: Passage
    score: float
    rank: int
    kb: str = ""
    parts: Mapping[str, float] = field(default_factory=dict)

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
        query: What was searched with, e.g. `image`.
        kb: Name of the knowledge base that the entry is from.
        parts: What the score is made of, e.g. `{"image": 0.8, "title": 0.2}`.
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
        score: Its similarity to the query.
        rank: 1 for the best.
        kb: Name of the knowledge base that it is from.
    """

    passage: Passage
    score: float
    rank: int
    kb: str = ""

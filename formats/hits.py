"""Results of a retriever."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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


def describe_ranks(hits: Sequence[Hit]) -> dict[str, str]:
    """Describe each entry's rank among a question's hits, as `2 of 5 (similarity 0.74; first 0.81)`, by entry id."""
    return {
        hit.entry_id: f"{hit.rank} of {len(hits)} (similarity {hit.score:.2f}; first {hits[0].score:.2f})"
        for hit in hits
    }


@dataclass(frozen=True)
class PassageHit:
    """A retrieved passage.

    Attributes:
        passage: The passage.
        score: Ranking score: similarity to the query, or a reranker's score.
        rank: 1 for the best.
        kb: Name of the passage's knowledge base.
        parts: Known scores by name, e.g. in a retrieved entry `{"entry": 0.5, "passage": 7.1, "image": 0.8}`.
        image: Path of the image of an image-text pair, if it is to be shown; "" for none.
    """

    passage: Passage
    score: float
    rank: int
    kb: str = ""
    parts: Mapping[str, float] = field(default_factory=dict)
    image: str = ""

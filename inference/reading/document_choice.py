"""Which documents MMKB-RAG answers from: SRT's order and selection, and what a reply of MCT makes of it. No model."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from reflectune.models.schemes.mct import read_reply

Mct = Literal["none", "filter", "merge", "rerank"]
Problem = Literal["", "no_numbers", "out_of_range", "repeated", "empty_summary"]

PROBLEMS: tuple[Problem, ...] = ("no_numbers", "out_of_range", "repeated", "empty_summary")
"""What can be wrong with a reply to P_MCT; `empty_summary` only where the answer is to be read from the summary."""

AUTO_WITHOUT_SRT = 5
"""How many documents `k: auto` keeps where nothing has judged them: the default of MMKB-RAG's §4.4.1."""


@dataclass(frozen=True)
class MctTrace:
    """One reply to P_MCT, and what was made of it.

    Attributes:
        reply: The reply as it was decoded, reflection tokens included.
        shown: How many of the documents that SRT kept were shown, in that order and numbered from 1.
        finished: Whether the reply ended by itself, and not at the longest length.
        keep: Numbers of the documents to keep, as read from the reply; none if it is malformed.
        summary: The summary, as read from the reply; may be "".
        problem: Why the reply is malformed, and SRT's order was used in its place; "" if it is not.
        merged: Whether the answer was read from the summary alone.
    """

    reply: str
    shown: int
    finished: bool = True
    keep: tuple[int, ...] = ()
    summary: str = ""
    problem: Problem = ""
    merged: bool = False


def by_relevance(scores: Sequence[float | None]) -> list[int]:
    """Positions of the documents that were judged, highest score first; equal ones keep their order (equation 6)."""
    judged = [(score, place) for place, score in enumerate(scores) if score is not None]
    return [place for _, place in sorted(judged, key=lambda pair: (-pair[0], pair[1]))]


def keep_relevant(
    scores: Sequence[float | None], k: int, threshold: float, weights: Sequence[float] | None = None
) -> tuple[list[int], bool]:
    """What SRT keeps.

    Args:
        scores: Score_SRT of each document (equation 7), None where it could not be read.
        k: How many to keep; 0, which is `auto`, keeps those whose score is at least `threshold`, and at least one.
        threshold: See `k`.
        weights: What the scores are multiplied by for the order, and for it alone; None: nothing, as published.

    Returns:
        Positions, best first; and whether no score reached the threshold, so that the best one was kept all the same.
    """
    weighed = [None if s is None else s * w for s, w in zip(scores, weights or [1.0] * len(scores), strict=True)]
    order = by_relevance(weighed)
    if k:
        return order[:k], False
    passed = [place for place in order if (scores[place] or 0.0) >= threshold]
    return passed or order[:1], bool(order) and not passed


def keep_first(documents: int, k: int) -> list[int]:
    """What is kept without SRT: the first k in the retriever's order; 0 is `auto`."""
    return list(range(min(documents, k or AUTO_WITHOUT_SRT)))


def read_mct(reply: str, shown: int, how: Mct) -> MctTrace:
    """What a reply to P_MCT means for this way of using it."""
    parsed = read_reply(reply, shown)
    problem: Problem = parsed.problem
    if how == "merge" and not problem and not parsed.summary:
        problem = "empty_summary"
    return MctTrace(reply, shown, keep=parsed.keep, summary=parsed.summary, problem=problem)


def apply_mct(kept: Sequence[int], mct: MctTrace, how: Mct) -> tuple[list[int], MctTrace]:
    """The documents to answer from, in order, after MCT; none if the answer is to be read from the summary alone.

    Args:
        kept: Positions of what SRT kept, in its order; MCT was shown the first `mct.shown` of them.
        mct: The reply. A malformed one changes nothing.
        how: `filter`: those that it keeps; `merge`: its summary; `rerank`: those that it keeps, then the others.

    Returns:
        Positions, and the reply with `merged` set.
    """
    if mct.problem or how == "none":
        return list(kept), mct
    if how == "merge":
        return [], dataclasses.replace(mct, merged=True)
    chosen = [kept[number - 1] for number in mct.keep]
    others = [place for place in kept if place not in chosen] if how == "rerank" else []
    return [*chosen, *others], mct

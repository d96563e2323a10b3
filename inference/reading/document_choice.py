"""Selection of MMKB-RAG's documents: SRT's order and threshold, and MCT's parsed reply. No model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from reflectune.core.odds import log_odds, sigmoid
from reflectune.models.schemes.mct import read_reply

Mct = Literal["none", "filter", "merge", "rerank", "entry"]
Problem = Literal["", "no_numbers", "out_of_range", "repeated", "empty_summary"]

PROBLEMS: tuple[Problem, ...] = ("no_numbers", "out_of_range", "repeated", "empty_summary")
"""Defects of a reply to P_MCT; `empty_summary` only if the answer is read from the summary."""

AUTO_WITHOUT_SRT = 5
"""Number of documents that `k: auto` keeps without SRT: the default of MMKB-RAG's §4.4.1."""


@dataclass(frozen=True)
class MctTrace:
    """A reply to P_MCT, parsed.

    Attributes:
        reply: The decoded reply, reflection tokens included.
        shown: Number of documents kept by SRT that were shown, in that order and numbered from 1.
        finished: True if it ended with the end token.
        keep: Numbers of the documents to keep; none if the reply is malformed.
        summary: The summary; may be "".
        problem: Defect of the reply, in which case SRT's order is used; "" if it is well-formed.
        merged: True if the answer was read from the summary alone.
    """

    reply: str
    shown: int
    finished: bool = True
    keep: tuple[int, ...] = ()
    summary: str = ""
    problem: Problem = ""
    merged: bool = False


def by_relevance(scores: Sequence[float | None]) -> list[int]:
    """Return the positions of judged documents, highest score first; ties keep their order (equation 6)."""
    judged = [(score, position) for position, score in enumerate(scores) if score is not None]
    return [position for _, position in sorted(judged, key=lambda pair: (-pair[0], pair[1]))]


def fuse(score: float, share: float, weights: Sequence[float]) -> float:
    """Return sigmoid(a · logit Score_SRT + b · log share + c), a probability that the document helps.

    Args:
        score: Score_SRT, equation 7.
        share: The share of the document's entry (`document_shares`).
        weights: a, b and c.
    """
    return float(sigmoid(np.dot(weights, fusion_features(score, share))))


def fusion_features(score: float, share: float) -> tuple[float, float, float]:
    """Return logit Score_SRT, log share and 1, of a score in [10⁻⁶, 1 - 10⁻⁶] and a share of at least 10⁻⁶, clipped."""
    return log_odds(score, bound=math.log(1e6 - 1)), math.log(max(share, 1e-6)), 1.0


def keep_relevant(
    scores: Sequence[float | None], k: int, threshold: float, weights: Sequence[float] | None = None
) -> tuple[list[int], bool]:
    """Select documents by SRT.

    Args:
        scores: Score_SRT of each document (equation 7), None if unread.
        k: Number to keep; 0 (`auto`) keeps those whose score is at least `threshold`, and at least one.
        threshold: See `k`.
        weights: Factors of the scores for the order alone; None: no factors, as published.

    Returns:
        Positions, best first; and True if no score reached the threshold and the best one was kept.
    """
    weighted = [None if s is None else s * w for s, w in zip(scores, weights or [1.0] * len(scores), strict=True)]
    order = by_relevance(weighted)
    if k:
        return order[:k], False
    passed = [position for position in order if (scores[position] or 0.0) >= threshold]
    return passed or order[:1], bool(order) and not passed


def keep_first(documents: int, k: int) -> list[int]:
    """Select documents without SRT: the first k in the retriever's order; 0 is `auto`."""
    return list(range(min(documents, k or AUTO_WITHOUT_SRT)))


def keep_entry(kept: Sequence[int], entries: Sequence[str], scores: Sequence[float]) -> list[int]:
    """Return the kept documents of one entry, the one whose kept documents have the highest sum of scores.

    Args:
        kept: Positions of the kept documents, in order.
        entries: The entry of each document.
        scores: The score of each document.
    """
    sums: dict[str, float] = {}
    for position in kept:
        sums[entries[position]] = sums.get(entries[position], 0.0) + scores[position]
    best = max(sums, key=sums.__getitem__, default="")
    return [position for position in kept if entries[position] == best]


def apply_mct(kept: Sequence[int], reply: str, shown: int, mode: Mct) -> tuple[list[int], MctTrace]:
    """Return the documents to answer from after MCT, in order; none if the answer is read from the summary alone.

    Args:
        kept: Positions kept by SRT, in its order.
        reply: The reply to P_MCT. A malformed one changes nothing.
        shown: Number of these documents that were shown, the first ones.
        mode: `filter`: the documents that it keeps; `merge`: its summary; `rerank`: those that it keeps first.

    Returns:
        Positions, and the parsed reply.
    """
    parsed = read_reply(reply, shown)
    problem: Problem = parsed.problem
    if mode == "merge" and not problem and not parsed.summary:
        problem = "empty_summary"
    is_merged = mode == "merge" and not problem
    mct = MctTrace(reply, shown, keep=parsed.keep, summary=parsed.summary, problem=problem, merged=is_merged)
    if problem:
        return list(kept), mct
    if is_merged:
        return [], mct
    chosen = [kept[number - 1] for number in mct.keep]
    others = [position for position in kept if position not in chosen] if mode == "rerank" else []
    return [*chosen, *others], mct

"""The eight ways of choosing among candidate answers that Table 5 of mR²AG (arXiv 2411.15041) compares."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

FULL = "full"

RANKINGS: Mapping[str, tuple[str, ...]] = {
    "random": (),
    "ans": ("ans",),
    "ret": ("ret",),
    "rel": ("rel",),
    "ret*ans": ("ret", "ans"),
    "rel*ans": ("rel", "ans"),
    "ret*rel": ("ret", "rel"),
    FULL: ("ret", "rel", "ans"),
}
"""The scores that each ranking multiplies, in the order of Table 5's rows."""

PAPER_TABLE_5: Mapping[str, Mapping[str, float]] = {
    name: {"unseen_question": question, "unseen_entity": entity, "overall": overall}
    for name, question, entity, overall in [
        ("random", 0.327, 0.327, 0.327),
        ("ans", 0.364, 0.370, 0.367),
        ("ret", 0.376, 0.374, 0.375),
        ("rel", 0.397, 0.387, 0.392),
        ("ret*ans", 0.383, 0.387, 0.385),
        ("rel*ans", 0.395, 0.390, 0.392),
        ("ret*rel", 0.405, 0.393, 0.399),
        (FULL, 0.406, 0.398, 0.402),
    ]
}
"""Table 5 of the paper: LLaVA-7B on InfoSeek's validation split, as fractions of 1. For its order, not its values."""


@dataclass(frozen=True)
class Scores:
    """The three levels of evidence for one candidate answer: entry (eq. 3), passage (eq. 6), answer (eq. 7)."""

    ret: float
    rel: float
    ans: float


def product(scores: Scores, ranking: str = FULL) -> float:
    """What a ranking orders by: the product of its scores, with a negative S_ret counted as 0.

    A cosine may be below 0; unclamped, it would turn the order of the other two factors round.

    Example:
        >>> product(Scores(ret=0.5, rel=0.8, ans=0.5))
        0.2
        >>> product(Scores(ret=-0.5, rel=0.8, ans=0.5), "rel*ans")
        0.4
    """
    return math.prod(max(0.0, getattr(scores, name)) for name in RANKINGS[ranking])


def best(candidates: Sequence[Scores]) -> int:
    """The candidate with the highest full product; on a tie the one with the higher S_rel, then the earlier one.

    Raises:
        ValueError: There is no candidate.
    """
    return max(range(len(candidates)), key=lambda i: (product(candidates[i]), candidates[i].rel, -i))


def choice_weights(candidates: Sequence[Scores], ranking: str) -> list[float]:
    """The probability with which a ranking chooses each candidate: 1 for the best, shared equally between ties.

    `random` multiplies nothing, so that all candidates tie: its weights give the exact expectation of a random choice,
    without the noise of drawing one. `ret` cannot tell the passages of one entry apart, and shares between them.

    Returns:
        As many weights as there are candidates; they sum to 1 (or there are none).
    """
    products = [product(scores, ranking) for scores in candidates]
    ties = [value == max(products) for value in products]
    return [tie / sum(ties) for tie in ties]


def order_agreement(found: Mapping[str, float], reported: Mapping[str, float]) -> float:
    """The share of pairs that two tables order alike, among the pairs that the second does order.

    Args:
        found: Score by ranking, as measured.
        reported: Score by ranking, as a paper prints it; its equal pairs say nothing and are left out.

    Returns:
        In [0, 1]; a pair that ties in `found` counts half. 1.0 if no pair is ordered.
    """
    agreements = []
    for first, second in itertools.combinations(reported, 2):
        expected = _sign(reported[first] - reported[second])
        if expected:
            agreements.append((1 + expected * _sign(found[first] - found[second])) / 2)
    return sum(agreements) / len(agreements) if agreements else 1.0


def _sign(value: float) -> int:
    return (value > 0) - (value < 0)

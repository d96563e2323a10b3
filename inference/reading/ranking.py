"""The eight rankings of candidate answers in Table 5 of mR²AG (arXiv 2411.15041)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from reflectune.formats.hits import Hit

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
"""Factors of each ranking, in the order of Table 5's rows."""

PLAIN = (1.0, 1.0, 1.0)
"""The paper's exponents of S_ret, S_rel and S_ans."""


@dataclass(frozen=True)
class PassageScores:
    """The three scores of a candidate answer.

    Attributes:
        ret: Score of its entry: equation 3, or `entry_shares`.
        rel: Score of its passage: equation 6.
        ans: Score of the answer: equation 7.
    """

    ret: float
    rel: float
    ans: float


def entry_shares(similarities: Sequence[float], temperature: float) -> list[float]:
    """Compute S_ret as a softmax over the retrieved entries: similarity / temperature.

    Cosines of retrieved entries are nearly equal, so they hardly matter as factors of a product. A softmax enlarges
    their differences.

    Args:
        similarities: Similarities of one question's entries.
        temperature: Above 0. CLIP is trained with 0.01 (arXiv 2103.00020: logits are scaled by at most 100).

    Returns:
        A share for each entry; they sum to 1 (or there are none).

    Example:
        >>> [round(share, 3) for share in entry_shares([0.82, 0.80, 0.79], temperature=0.02)]
        [0.629, 0.231, 0.14]
    """
    highest = max(similarities, default=0.0)
    weights = [math.exp((similarity - highest) / temperature) for similarity in similarities]
    total = sum(weights)
    return [weight / total for weight in weights]


def entry_scores(hits: Sequence[Hit], temperature: float) -> dict[str, float]:
    """Compute S_ret of each entry: its similarity (equation 3), or with a temperature its share of a softmax."""
    similarities = [hit.score for hit in hits]
    scores = entry_shares(similarities, temperature) if temperature else similarities
    return {hit.entry_id: score for hit, score in zip(hits, scores, strict=True)}


def shift_relevance(s_rel: float, s_irr: float, shift: float) -> tuple[float, float]:
    """Add `shift` to the log-odds of [Relevant] against [Irrelevant]. The sum of both probabilities stays the same.

    This corrects the prior: if 1 of 4 passages is relevant in training, and 1 of 101 in inference, the log-odds are too
    high by log(100 / 3) = 3.5 (Bayes' rule).
    """
    if not shift:
        return s_rel, s_irr
    total, weight = s_rel + s_irr, s_rel * math.exp(shift)
    share = weight / (weight + s_irr) if weight else 0.0
    return total * share, total * (1.0 - share)


def document_shares(entries: Sequence[str], similarities: Sequence[float], temperature: float) -> list[float]:
    """Return for each document its entry's share of a softmax over the documents' entries."""
    by_entry = dict(zip(entries, similarities, strict=True))
    shares = dict(zip(by_entry, entry_shares(list(by_entry.values()), temperature), strict=True))
    return [shares[entry] for entry in entries]


def product(scores: PassageScores, ranking: str = FULL, exponents: Sequence[float] = PLAIN) -> float:
    """Compute the product of a ranking's scores, each to its exponent, with a negative S_ret counted as 0.

    A cosine may be below 0; unclamped, it would reverse the order of the other two factors.

    Example:
        >>> product(PassageScores(ret=0.5, rel=0.8, ans=0.5))
        0.2
        >>> product(PassageScores(ret=-0.5, rel=0.8, ans=0.5), "rel*ans")
        0.4
    """
    names, powers = RANKINGS[ranking], zip(RANKINGS[FULL], exponents, strict=True)
    return math.prod([max(0.0, getattr(scores, name)) ** power for name, power in powers if name in names])


def best(
    candidates: Sequence[PassageScores], exponents: Sequence[float] = PLAIN, answers: Sequence[str] | None = None
) -> int:
    """Return the candidate with the highest full product; ties are broken by S_rel, then by the earlier position.

    Args:
        candidates: The scores.
        exponents: Exponents of S_ret, S_rel and S_ans.
        answers: Normalized answers, to add up the products of candidates with equal answers; None: no votes.

    Raises:
        ValueError: `candidates` is empty.
    """
    products = [product(scores, exponents=exponents) for scores in candidates]
    voters: Sequence[str | int] = range(len(candidates)) if answers is None else answers
    votes: dict[str | int, float] = {}
    for voter, value in zip(voters, products, strict=True):
        votes[voter] = votes.get(voter, 0.0) + value
    return max(range(len(candidates)), key=lambda i: (votes[voters[i]], products[i], candidates[i].rel, -i))


def choice_weights(candidates: Sequence[PassageScores], ranking: str) -> list[float]:
    """Compute the probability with which a ranking chooses each candidate: 1 for the best, shared equally between ties.

    `random` multiplies nothing, so all candidates tie: the weights give the exact expectation of a random choice.
    `ret` can't distinguish passages of one entry, which share its weight.

    Returns:
        A weight for each candidate; they sum to 1 (or there are none).
    """
    products = [product(scores, ranking) for scores in candidates]
    ties = [value == max(products) for value in products]
    return [tie / sum(ties) for tie in ties]

"""How high retrieval ranks what was asked for: recall at k over articles and passages, mean reciprocal rank."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from reflectune.core.types import Evidence, Passage


def recall_at_k(candidates: Sequence[str], ground_truth: str, ks: Sequence[int]) -> dict[int, int]:
    """For each k, 1 if the right one is among the first k candidates, else 0 (EchoSight's measure)."""
    return {k: int(ground_truth in candidates[:k]) for k in ks}


def article_recall_at_k(ranked: Sequence[str], gold: Collection[str], k: int) -> float:
    """1.0 if any gold entry is among the first k different entries, else 0.0.

    Args:
        ranked: Ids of entries, best first. One that comes again takes no further place.
        gold: Ids of the entries that count as right, at least one.
        k: How many entries are looked at, at least 1.
    """
    _check(gold, k)
    return float(any(entry in gold for entry in list(dict.fromkeys(ranked))[:k]))


def passage_recall_at_k(ranked: Sequence[Passage], evidence: Collection[Evidence], k: int) -> float:
    """1.0 if any of the first k passages comes from a section that holds the evidence, else 0.0."""
    _check(evidence, k)
    return float(any(Evidence(passage.entry_id, passage.section) in evidence for passage in ranked[:k]))


def reciprocal_rank(ranked: Sequence[str], gold: Collection[str]) -> float:
    """1 / (place of the first gold id, counted from 1); 0.0 if there is none."""
    return next((1.0 / place for place, found in enumerate(ranked, start=1) if found in gold), 0.0)


def mrr(rankings: Sequence[Sequence[str]], golds: Sequence[Collection[str]]) -> float:
    """Mean reciprocal rank over questions, at least one."""
    if not rankings:
        raise ValueError("expected at least one ranking, found none")
    return sum(reciprocal_rank(ranked, gold) for ranked, gold in zip(rankings, golds, strict=True)) / len(rankings)


def _check(gold: Collection[object], k: int) -> None:
    if not gold:
        raise ValueError("expected at least one gold item: recall of nothing is undefined; leave such questions out")
    if k < 1:
        raise ValueError(f"expected k of at least 1, found {k}")

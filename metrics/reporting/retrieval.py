"""Retrieval metrics: recall at k over articles and passages, reciprocal rank.

Each quantity has its own name, since they are not comparable: `article_recall` needs the gold article, `passage_recall`
the evidence section, `prr` only the answer's text, and `entity_mention_recall` (`metrics.official.pmsr`) a name.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from reflectune.core.types import Evidence, Passage


def article_recall_at_k(ranked: Sequence[str], gold: Collection[str], k: int) -> float:
    """Return 1.0 if any gold entry is among the first k distinct entries, else 0.0 (EchoSight's measure).

    Args:
        ranked: Ids of entries, best first; repeated ids count once.
        gold: Ids of the gold entries, at least one.
        k: Number of entries to look at, at least 1.
    """
    _check(gold, k)
    return float(any(entry in gold for entry in list(dict.fromkeys(ranked))[:k]))


def passage_recall_at_k(ranked: Sequence[Passage], evidence: Collection[Evidence], k: int) -> float:
    """Return 1.0 if any of the first k passages comes from a section that holds the evidence, else 0.0."""
    _check(evidence, k)
    return float(any(Evidence(passage.entry_id, passage.section) in evidence for passage in ranked[:k]))


def prr_at_k(texts: Sequence[str], answers: Collection[str], k: int) -> float:
    """Return pseudo-relevance recall: 1.0 if any accepted answer is in any of the first k texts, else 0.0.

    FLMR's test is a case-insensitive substring, so that "no" is in "known" and an empty answer in every text.

    Args:
        texts: Retrieved passages as in the index, best first.
        answers: Accepted answers, aliases included; at least one.
        k: Number of passages to look at, at least 1.

    Raises:
        ValueError: No answer is given, k is less than 1, or nothing was found.
    """
    _check(answers, k)
    if not texts:
        raise ValueError("expected at least one retrieved text, found none: FLMR's recall of nothing is undefined")
    references = [answer.strip().lower() for answer in answers]
    return float(any(reference in text.lower() for text in texts[:k] for reference in references))


def overlap_at_k(ranked: Sequence[str], exact: Sequence[str], k: int) -> float:
    """Return the share of an exact search's first k results that an approximate search also has among its first k.

    Args:
        ranked: Ids of the approximate search, best first.
        exact: Ids of the exact search, at least one.
        k: Number of results to compare, at least 1.
    """
    _check(exact, k)
    return len(set(ranked[:k]) & set(exact[:k])) / len(set(exact[:k]))


def reciprocal_rank(ranked: Sequence[str], gold: Collection[str]) -> float:
    """Return 1 / (rank of the first gold id, from 1); 0.0 if there is none."""
    return next((1.0 / rank for rank, entry_id in enumerate(ranked, start=1) if entry_id in gold), 0.0)


def _check(gold: Collection[object], k: int) -> None:
    if not gold:
        raise ValueError("expected at least one gold item: recall of nothing is undefined; leave such questions out")
    if k < 1:
        raise ValueError(f"expected k of at least 1, found {k}")

"""How high retrieval ranks what was asked for: recall at k over articles and passages, mean reciprocal rank.

Each quantity has its own name, since they are not comparable: `article_recall` needs the gold article, `passage_recall`
the evidence section, `prr` only the answer's text, and `entity_mention_recall` (`metrics.official.pmsr`) a name.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Literal

from reflectune.core.types import Evidence, Passage
from reflectune.metrics.judging.cover import cover_match
from reflectune.metrics.official import pmsr


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


def prr_at_k(
    texts: Sequence[str], answers: Collection[str], k: int, mode: Literal["official", "strict"] = "official"
) -> float:
    """Pseudo-relevance recall: 1.0 if any accepted answer stands in any of the first k texts, else 0.0.

    Args:
        texts: Retrieved passages as the index holds them, best first.
        answers: Accepted answers, aliases included; at least one.
        k: How many passages are looked at, at least 1.
        mode: `official` is FLMR's test, a substring regardless of case, so that "no" stands in "known" and an empty
            answer in every text; `strict` wants whole tokens (`reflectune.metrics.judging.cover`).

    Raises:
        ValueError: There is no answer, or k is less than 1; in `official` mode also if nothing was retrieved, where
            FLMR's program stops too.
    """
    _check(answers, k)
    if mode == "strict":
        return float(any(cover_match(text, answers) for text in texts[:k]))
    if not texts:
        raise ValueError("expected at least one retrieved text, found none: FLMR's recall of nothing is undefined")
    wanted = [answer.strip().lower() for answer in answers]
    return float(any(answer in text.lower() for text in texts[:k] for answer in wanted))


def overlap_at_k(ranked: Sequence[str], exact: Sequence[str], k: int) -> float:
    """The share of the first k that an exact search finds that an approximate one has among its first k too.

    Args:
        ranked: Ids that the approximate search found, best first.
        exact: Those of the exact one, at least one.
        k: How many are compared, at least 1.
    """
    _check(exact, k)
    return len(set(ranked[:k]) & set(exact[:k])) / len(set(exact[:k]))


def entity_mentioned(
    entities: Sequence[str], texts: Sequence[str], mode: Literal["official", "strict"] = "strict"
) -> bool:
    """Whether any entity is named in what was retrieved.

    Args:
        entities: Names that mean the same; each may be several names joined by `|`, all of which are wanted.
        texts: What was retrieved, titles included.
        mode: `official` is PMSR's test (`metrics.official.pmsr`), a substring of all texts as one; `strict` wants the
            name's tokens side by side in one text.
    """
    if mode == "official":
        return pmsr.names_in(entities, "\n\n".join(texts))
    groups = [[part for part in name.split("|") if part.strip()] for name in entities]
    return any(
        bool(group) and all(any(cover_match(text, [part]) for text in texts) for part in group) for group in groups
    )


def cumulative_recall(hits: Sequence[Sequence[bool]]) -> list[float]:
    """Share of questions that have found what they look for by each iteration; it never falls.

    Args:
        hits: For each question, whether each of its iterations found it. A question that stops early keeps what it
            had, and counts in every iteration.

    Returns:
        One recall for each iteration of the longest question; [] if no question has any.
    """
    rounds = max(map(len, hits), default=0)
    return [sum(any(question_hits[: count + 1]) for question_hits in hits) / len(hits) for count in range(rounds)]


def reciprocal_rank(ranked: Sequence[str], gold: Collection[str]) -> float:
    """1 / (place of the first gold id, counted from 1); 0.0 if there is none."""
    return next((1.0 / place for place, entry_id in enumerate(ranked, start=1) if entry_id in gold), 0.0)


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

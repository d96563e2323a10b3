"""From scored rows to what is reported: overall, by split and type, with intervals; and two runs beside each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from reflectune.metrics import infoseek, pmsr
from reflectune.metrics.intervals import bootstrap_interval, paired_bootstrap, permutation_test
from reflectune.metrics.predictions import PredictionFile
from reflectune.metrics.registry import evqa_type
from reflectune.metrics.retrieval import article_recall_at_k, reciprocal_rank
from reflectune.metrics.scoring import Joined, Scored

RECALLS = (1, 5, 10, 20)
_KINDS = {"numerical": "num", "time": "time"}


def table(scored: Scored, seed: int) -> dict[str, Any]:
    """Scores as fractions of 1 with their 95 % intervals, `{"value", "low", "high", "n"}`.

    `infoseek`'s overall score is the harmonic mean of its two halves, None unless both are there, and `official_report`
    is what the official program prints. Every other metric's overall score is the mean; E-VQA's `single_hop` leaves
    two-hop questions out.
    """
    if not len(scored.values):
        return {"overall": None, "by_split": {}, "by_type": {}}
    found: dict[str, Any] = {"overall": _overall(scored, seed)}
    if scored.metric == "infoseek":
        kinds = [_KINDS.get(question.answer_type, "string") for question in scored.questions]
        splits = [question.split for question in scored.questions]
        found["official_report"] = infoseek.percent_report(zip(splits, kinds, scored.values.tolist(), strict=True))
    if scored.metric.startswith("evqa"):
        types = [evqa_type(question) for question in scored.questions]
        found["single_hop"] = _mean(scored.values[[kind != "2_hop" for kind in types]], seed)
    else:
        types = [str(question.answer_type) for question in scored.questions]
    found["by_split"] = _by(scored, [question.split for question in scored.questions], seed)
    found["by_type"] = _by(scored, types, seed)
    if scored.too_long:
        found["too_long_for_bem"] = list(scored.too_long)
    return found


def compare(first: Scored, second: Scored, seed: int) -> dict[str, Any]:
    """First less second on the questions that both answered: difference, its interval, and a paired test's p.

    In `strict` mode those are all questions. A question answered twice counts by its first answer.

    Returns:
        `value`, `low`, `high` (bootstrap by question), `p` (permutation test, two-sided), `n`, and on how many
        questions the first is `better` and `worse`; all None or 0 if there is no such question.
    """
    values = [_first_values(scored) for scored in (first, second)]
    common = [key for key in values[0] if key in values[1]]
    if not common:
        return {"value": None, "low": None, "high": None, "p": None, "n": 0, "better": 0, "worse": 0}
    a, b = (np.array([found[key] for key in common]) for found in values)
    splits = {question.id: question.split for question in first.questions}
    half = np.array([infoseek.is_unseen_question(splits[key]) for key in common], dtype=float)
    if first.metric == "infoseek" and 0 < half.sum() < len(half):
        one, other = np.column_stack([half, a]), np.column_stack([half, b])
        difference = paired_bootstrap(one, other, _harmonic, seed=seed, strata=half)
        p = permutation_test(one, other, _harmonic, seed=seed)
    else:
        difference, p = paired_bootstrap(a, b, seed=seed), permutation_test(a, b, seed=seed)
    return {
        "value": difference.value,
        "low": difference.low,
        "high": difference.high,
        "p": p,
        "n": len(common),
        "better": int((a > b).sum()),
        "worse": int((a < b).sum()),
    }


def retrieval_table(file: PredictionFile, joined: Joined) -> dict[str, Any]:
    """What the file says of retrieval: article recall and MRR over ranked articles; PMSR's entity-mention recall."""
    known = [(p.retrieved, q.entity_ids) for q, p in joined.pairs if p.retrieved and q.entity_ids]
    found: dict[str, Any] = {}
    if known:
        for k in RECALLS:
            found[f"article_recall@{k}"] = sum(article_recall_at_k(*pair, k) for pair in known) / len(known)
        found["mrr"] = sum(reciprocal_rank(*pair) for pair in known) / len(known)
        found["n"] = len(known)
    if file.layout == "pmsr" and joined.pairs:
        rows = [prediction.row for _, prediction in joined.pairs]
        found["entity_mention_recall"] = pmsr.entity_mention_recall(rows)
        found["entity_mention_recall_by_iteration"] = [
            {"text": step.text, "image": step.image, "combined": step.combined}
            for step in pmsr.recall_by_iteration(rows)
        ]
    return found


def _overall(scored: Scored, seed: int) -> dict[str, Any] | None:
    if scored.metric != "infoseek":
        return _mean(scored.values, seed)
    half = np.array([infoseek.is_unseen_question(question.split) for question in scored.questions], dtype=float)
    if not 0 < half.sum() < len(half):
        return None
    rows = np.column_stack([half, scored.values])
    low, high = bootstrap_interval(rows, _harmonic, seed=seed, strata=half)
    return {"value": _harmonic(rows), "low": low, "high": high, "n": len(rows)}


def _harmonic(rows: np.ndarray) -> float:
    """InfoSeek's overall score, unrounded, of rows (is unseen question, score)."""
    count = rows[:, 0].sum()
    right = (rows[:, 0] * rows[:, 1]).sum()
    return infoseek.overall(float(right / count), float((rows[:, 1].sum() - right) / (len(rows) - count)))


def _by(scored: Scored, labels: Sequence[str], seed: int) -> dict[str, Any]:
    names = np.array(labels)
    return {str(name): _mean(scored.values[names == name], seed) for name in np.unique(names)}


def _mean(values: np.ndarray, seed: int) -> dict[str, Any] | None:
    if not len(values):
        return None
    low, high = bootstrap_interval(values, seed=seed)
    return {"value": float(values.mean()), "low": low, "high": high, "n": len(values)}


def _first_values(scored: Scored) -> dict[str, float]:
    found: dict[str, float] = {}
    for question, value in zip(scored.questions, scored.values.tolist(), strict=True):
        found.setdefault(question.id, value)
    return found

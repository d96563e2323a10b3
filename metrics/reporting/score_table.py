"""Tables of scores: overall, by split and type, with intervals; and the difference of two runs."""

from __future__ import annotations

from typing import Any

import numpy as np

from reflectune.metrics.official import infoseek, pmsr
from reflectune.metrics.reporting.breakdown import breakdown, by_label, columns, headline, kind
from reflectune.metrics.reporting.intervals import entities, permutation_test
from reflectune.metrics.reporting.retrieval import article_recall_at_k, reciprocal_rank
from reflectune.metrics.scoring.predictions import PredictionFile
from reflectune.metrics.scoring.registry import Mode
from reflectune.metrics.scoring.scoring import Joined, Scored

RECALLS = (1, 5, 10, 20)


def table(scored: Scored, seed: int) -> dict[str, Any]:
    """Return scores as fractions of 1 with their 95 % intervals, `{"value", "low", "high", "n"}`.

    `infoseek`'s overall score is the harmonic mean of its two halves, None unless both are there, and `official_report`
    is the official program's output. Every other metric's overall score is the mean. The `columns` of the metric's
    official table follow; E-VQA's `single_hop` leaves two-hop questions out.
    """
    if not len(scored.values):
        return {"overall": None, "by_split": {}, "by_type": {}}
    metric, questions = scored.metric, scored.questions
    scores: dict[str, Any] = breakdown(metric, questions, scored.values, seed)
    scores["columns"] = {column.name: column.title for column in columns(metric, questions)}
    if metric == "infoseek":
        kinds = [infoseek.official_kind(question) for question in questions]
        splits = [question.split for question in questions]
        scores["official_report"] = infoseek.percent_report(zip(splits, kinds, scored.values.tolist(), strict=True))
    scores["by_split"] = by_label(questions, scored.values, [question.split for question in questions], seed)
    scores["by_type"] = by_label(questions, scored.values, [kind(question, metric) for question in questions], seed)
    if scored.too_long:
        scores["too_long_for_bem"] = list(scored.too_long)
    return scores


def compare(first: Scored, second: Scored, seed: int) -> dict[str, Any]:
    """Compare two runs on the questions that both answered: difference, its interval, and a paired test's p.

    In `strict` mode those are all questions. A question answered twice counts by its first answer.

    Returns:
        `of` (`overall`, or InfoSeek's only half), `value`, `low`, `high` (bootstrap over entities), `p` (permutation
        test by entity, two-sided), `n`, and the numbers of questions on which the first is `better` and `worse`; all
        None or 0 without a common question.
    """
    values = [_first_values(scored) for scored in (first, second)]
    common = [key for key in values[0] if key in values[1]]
    if not common:
        return {"of": None, "value": None, "low": None, "high": None, "p": None, "n": 0, "better": 0, "worse": 0}
    a, b = (np.array([score_by_id[key] for key in common]) for score_by_id in values)
    questions_by_id = {question.id: question for question in first.questions}
    questions = [questions_by_id[key] for key in common]
    number = headline(first.metric, questions)
    one, other = number.rows(a), number.rows(b)
    return {
        "of": number.name,
        **(number.estimate(questions, [a], seed, [b]) or {}),
        "p": permutation_test(one, other, number.statistic, seed=seed, clusters=entities(questions)),
        "better": int((a > b).sum()),
        "worse": int((a < b).sum()),
    }


def retrieval_table(file: PredictionFile, joined: Joined, mode: Mode) -> dict[str, Any]:
    """Return the file's retrieval metrics: article recall and MRR over ranked articles; PMSR's entity-mention recall.

    An article that is listed several times, e.g. since two knowledge bases hold it, counts at its first place. In a
    file with retrieval results, a question without any counts as not found; in strict mode so does one without a row.
    """
    known = [(tuple(dict.fromkeys(p.retrieved)), q.entity_ids) for q, p in joined.pairs if q.entity_ids]
    if mode == "strict":
        known += [((), question.entity_ids) for question in joined.missing if question.entity_ids]
    retrieval_scores: dict[str, Any] = {}
    if any(ranked for ranked, _ in known):
        for k in RECALLS:
            retrieval_scores[f"article_recall@{k}"] = sum(article_recall_at_k(*pair, k) for pair in known) / len(known)
        retrieval_scores["mrr"] = sum(reciprocal_rank(*pair) for pair in known) / len(known)
        retrieval_scores["n"] = len(known)
    if file.layout == "pmsr" and joined.pairs:
        rows = [prediction.row for _, prediction in joined.pairs]
        retrieval_scores["entity_mention_recall"] = pmsr.entity_mention_recall(rows)
        retrieval_scores["entity_mention_recall_by_iteration"] = [
            {"text": step.text, "image": step.image, "combined": step.combined}
            for step in pmsr.recall_by_iteration(rows)
        ]
    return retrieval_scores


def _first_values(scored: Scored) -> dict[str, float]:
    value_by_id: dict[str, float] = {}
    for question, value in zip(scored.questions, scored.values.tolist(), strict=True):
        value_by_id.setdefault(question.id, value)
    return value_by_id

"""What a score is: which questions it is over, when an answer is right, and the interval around a mean."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from reflectune.core.types import Question
from reflectune.inference.ranking import choice_weights
from reflectune.inference.trace import Trace
from reflectune.metrics import infoseek
from reflectune.metrics.intervals import bootstrap_interval

Score = dict[str, float | int]
"""`{"value", "low", "high", "n"}`: a fraction of 1 with its 95 % interval, over n questions."""

Traces = Mapping[str, Mapping[str, Trace]]
"""By pipeline or stage, then by question id."""


def official(questions: Iterable[Question]) -> list[Question]:
    """The questions that the official score is over: knowledge-based ones, without two-hop ones."""
    return [q for q in questions if q.is_knowledge_based is not False and not is_two_hop(q) and has_truth(q)]


def visual(questions: Iterable[Question]) -> list[Question]:
    """The visual-dependent questions."""
    return [q for q in questions if q.is_knowledge_based is False and has_truth(q)]


def two_hop(questions: Iterable[Question]) -> list[Question]:
    """The two-hop questions, which stand outside the official score."""
    return [q for q in questions if is_two_hop(q) and has_truth(q)]


def is_two_hop(question: Question) -> bool:
    """Whether the data set says that the answer is two articles away."""
    return question.meta.get("two_hop") == "yes"


def has_truth(question: Question) -> bool:
    """Whether the data set gives what the official scorer compares with."""
    return question.range is not None if question.answer_type == "numerical" else bool(question.answers)


def correctness(question: Question, trace: Trace) -> float:
    """1 if the answer is right by InfoSeek's official rule, else 0; a failed or abstaining pipeline is wrong."""
    return 0.0 if trace.error else infoseek.score_one(trace.answer, question)


def expected_correctness(question: Question, trace: Trace, ranking: str) -> float:
    """The expected score of a question under a ranking; of its own answer where there was nothing to rank."""
    pairs = [(p.scores, p.answer) for p in trace.passages if p.scores is not None and p.answer is not None]
    if not pairs or trace.error:
        return correctness(question, trace)
    weights = choice_weights([scores for scores, _ in pairs], ranking)
    return sum(
        weight * infoseek.score_one(answer, question)
        for weight, (_, answer) in zip(weights, pairs, strict=True)
        if weight
    )


def score_rows(
    rows: np.ndarray,
    seed: int,
    statistic: Callable[[np.ndarray], float] | None = None,
    strata: np.ndarray | None = None,
) -> Score | None:
    """A statistic over rows (one a question; their mean if None) with its bootstrap interval over questions."""
    if not len(rows):
        return None
    low, high = bootstrap_interval(rows, statistic, seed=seed, strata=strata)
    value = rows.mean() if statistic is None else statistic(rows)
    return {"value": float(value), "low": low, "high": high, "n": len(rows)}


def mean(values: Sequence[float] | np.ndarray, seed: int) -> Score | None:
    """The mean of one value per question, with its interval."""
    return score_rows(np.asarray(values, dtype=float), seed)


def correct(questions: Iterable[Question], traces: Mapping[str, Trace]) -> list[float]:
    """`correctness` of the questions that have a trace, in order."""
    return [correctness(q, traces[q.id]) for q in questions if q.id in traces]


def overall(rows: np.ndarray) -> float:
    """Official overall score of rows (is unseen question, score); of two score columns, their difference."""
    unseen = rows[:, 0] == 1
    values = [infoseek.overall(_average(rows[unseen, k]), _average(rows[~unseen, k])) for k in range(1, rows.shape[1])]
    return values[0] if len(values) == 1 else values[0] - values[1]


def _average(values: np.ndarray) -> float:
    return float(values.mean()) if len(values) else 0.0


def split_scores(questions: Sequence[Question], values: Sequence[float], seed: int) -> dict[str, Score | None]:
    """Official overall and split scores of one value per question; overall needs both splits."""
    unseen = np.array([infoseek.is_unseen_question(q.split) for q in questions], dtype=bool)
    found = np.asarray(values, dtype=float)
    both = unseen.any() and not unseen.all()
    return {
        "overall": score_rows(np.column_stack([unseen, found]), seed, overall, strata=unseen) if both else None,
        "unseen_question": mean(found[unseen], seed),
        "unseen_entity": mean(found[~unseen], seed),
    }

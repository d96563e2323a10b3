"""Metrics of MMKB-RAG's decisions: RET against the base model's errors, SRT's order, malformed replies of MCT."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import compress
from typing import Any

import numpy as np

from reflectune.core.types import Question
from reflectune.inference.pipelines.diagnostics import STATING, is_searchable
from reflectune.inference.reading.document_choice import PROBLEMS, by_relevance
from reflectune.inference.scoring.scores import Traces, TraceScorer, traces_of_reflecting
from reflectune.inference.trace import TextlessTrace
from reflectune.metrics.reporting.breakdown import OVERALL, Score, auroc, mean, score_rows
from reflectune.metrics.reporting.gates import weighted_calibration_error
from reflectune.metrics.scoring.registry import is_wrong

Scopes = Mapping[str, Callable[[Question], bool]]
"""Predicates of questions by scope: `overall` for all, and the columns of the metric's table."""


def reflection(
    questions: Sequence[Question], traces: Traces, *, measure: TraceScorer, gamma: float, seed: int
) -> dict[str, Any] | None:
    """Measure how well the tuned model reflects; None if neither its pipeline nor the stage `reflection` was run.

    Args:
        traces: By pipeline or stage, then by question id.
        measure: Scorer of answers; the columns of its tables are the scopes here.
        gamma: RET's threshold.

    Returns:
        - `ret`, by scope: `auroc`, `accuracy` and `calibration_error` of Score_RET (equation 4 of arXiv 2504.10074)
          against "the base model's closed-book answer is wrong", and the share `base_wrong`, over all questions that
          the gate decides on. For the first two an answer worth less than half a point is wrong, as for RET's labels.
        - `ret_knowledge`: the same over knowledge-based questions alone.
        - `srt`, by scope: `stating_retrieved`, the share of questions with a document that states an answer; and of
          these, the share where the first document does, by SRT (`stating_first`) and in the retriever's order
          (`stating_first_retriever`).
        - `retrieved`: the share of the pipeline's questions with retrieval.
        - `mct`: the numbers of replies and of each malformation.
    """
    answers = traces_of_reflecting(traces, "reflection")
    if not answers and "reflection" not in traces:
        return None
    judged = {key: trace for key, trace in traces.get("reflection", {}).items() if not trace.error}
    known = [q for q in measure.official(questions) if q.id in judged]
    visual = [q for q in measure.visual(questions) if q.id in judged]
    decided = list({q.id: q for q in [*known, *visual]}.values())  # without duplicates: a metric may score visual ones
    scopes: Scopes = {OVERALL: lambda question: True} | {column.name: column.holds for column in measure.columns(known)}
    answered = [q for q in questions if q.id in answers and not answers[q.id].error]

    def ret(scope_questions: Sequence[Question]) -> dict[str, Score | None]:
        rows = [(q, *row) for q in scope_questions for row in ret_rows([q], traces, measure)]
        return _ret([q for q, *_ in rows], [(gate, wrong) for _, gate, wrong in rows], gamma, seed)

    return {
        "ret": _by_scope(decided, scopes, ret),
        "ret_knowledge": _by_scope(known, scopes, ret),
        "srt": _by_scope(known, scopes, lambda scope_questions: _srt(scope_questions, judged, seed)),
        "retrieved": mean(answered, [float(answers[q.id].retrieved) for q in answered], seed),
        "mct": _mct(answers[q.id] for q in answered),
    }


def ret_rows(questions: Iterable[Question], traces: Traces, measure: TraceScorer) -> list[tuple[float, float]]:
    """Return (Score_RET, 1 minus the worth of the base model's closed-book answer) of questions that have both."""
    judged, base = traces.get("reflection", {}), traces.get("closed_book", {})
    every = list(questions)
    scored_questions = {q.id: q for q in [*measure.official(every), *measure.visual(every)]}.values()
    both = [q for q in scored_questions if q.id in judged and q.id in base]
    gates_and_errors = [
        (judged[q.id].gate, 1.0 - measure.correctness(q, base[q.id])) for q in both if not base[q.id].error
    ]
    return [(gate, wrong) for gate, wrong in gates_and_errors if gate is not None]


def ret_decisions(rows: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Round the errors of `ret_rows` to 1 for a wrong answer and 0 for a right one, worth at least half a point."""
    return [(gate, float(is_wrong(1 - wrong))) for gate, wrong in rows]


def srt_rows(question: Question, judged: Mapping[str, TextlessTrace]) -> list[tuple[float, float]]:
    """Return (Score_SRT, 1 if it states an accepted answer else 0) of a searchable question's documents."""
    passages = judged[question.id].passages if question.id in judged and is_searchable(question) else ()
    return [(p.s_rel, float(p.source == STATING)) for p in passages if p.s_rel is not None]


def _by_scope(
    questions: Sequence[Question], scopes: Scopes, numbers: Callable[[list[Question]], dict[str, Any]]
) -> dict[str, Any]:
    return {scope: numbers([q for q in questions if belongs(q)]) for scope, belongs in scopes.items()}


def _ret(
    questions: Sequence[Question], gates_and_errors: Sequence[tuple[float, float]], gamma: float, seed: int
) -> dict[str, Score | None]:
    rows = np.array(gates_and_errors, dtype=float).reshape(-1, 2)
    decided = np.array(ret_decisions(gates_and_errors), dtype=float).reshape(-1, 2)
    return {
        "auroc": auroc(questions, decided, seed),
        "accuracy": mean(questions, (decided[:, 0] > gamma) == (decided[:, 1] == 1), seed),
        "calibration_error": score_rows(questions, rows, seed, weighted_calibration_error),
        "base_wrong": mean(questions, rows[:, 1], seed),
    }


def _srt(questions: Sequence[Question], traces: Mapping[str, TextlessTrace], seed: int) -> dict[str, Score | None]:
    questions = [question for question in questions if is_searchable(question)]
    retrieved = [_states(traces[q.id], range(len(traces[q.id].passages))) for q in questions]
    stating = list(compress(questions, retrieved))
    first = [by_relevance([p.s_rel for p in traces[q.id].passages])[:1] for q in stating]
    return {
        "stating_retrieved": mean(questions, retrieved, seed),
        "stating_first": mean(stating, [_states(traces[q.id], at) for q, at in zip(stating, first, strict=True)], seed),
        "stating_first_retriever": mean(stating, [_states(traces[q.id], [0]) for q in stating], seed),
    }


def _states(trace: TextlessTrace, positions: Iterable[int]) -> float:
    """Return 1 if a document at one of these positions states an accepted answer, else 0."""
    return float(any(trace.passages[position].source == STATING for position in positions))


def _mct(traces: Iterable[TextlessTrace]) -> dict[str, Any]:
    replies = [trace.mct for trace in traces if trace.mct is not None]
    problem_counts = Counter(reply.problem for reply in replies)
    return {
        "replies": len(replies),
        "malformed": len(replies) - problem_counts[""],
        "problems": {problem: problem_counts[problem] for problem in PROBLEMS},
    }

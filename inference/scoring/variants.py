"""Comparisons of variants of one iterative pipeline: PMSR's stop rule, and irrelevant passages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from reflectune.core.types import Question
from reflectune.inference.operators.requests import ANSWERING
from reflectune.inference.scoring.scores import Traces, TraceScorer
from reflectune.inference.scoring.trajectories import answers_right, records_right
from reflectune.inference.trace import Step, TextlessTrace
from reflectune.metrics.reporting.breakdown import score_rows

STOPPING, FIXED = "pmsr", "pmsr_fixed"
TAUS = (0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 0.99, 2.0)
"""Thresholds of the curve; no similarity reaches 2."""
WRITTEN = ("caption", "rewrite", "reason", *ANSWERING)


def stop_rule(
    questions: Sequence[Question], traces: Traces, *, measure: TraceScorer, seed: int
) -> dict[str, Any] | None:
    """Compare PMSR with the same trajectories without its stop rule.

    Both have equal steps up to the stop, since decoding is greedy and the rule only compares queries. Only iterations
    with a record count: after the queries that end a trajectory there is neither a search nor a record.

    Args:
        questions: The scored questions.
        traces: By pipeline, then by question id.
        measure: Scorer of answers.

    Returns:
        None unless `pmsr` and `pmsr_fixed` were run. Else `iterations` and `fixed` (means per question), `saved` (the
        share of iterations, with its interval over entities), `lost` (the score without the stop minus the score with
        it, paired by question) and `stopped` (the share of questions that the rule ended).
    """
    stopping, fixed = traces.get(STOPPING, {}), traces.get(FIXED, {})
    both = [q for q in questions if q.id in stopping and q.id in fixed]
    both = [q for q in both if not stopping[q.id].error and not fixed[q.id].error]
    rows = np.array([(_records(stopping[q.id]), _records(fixed[q.id])) for q in both], dtype=float).reshape(-1, 2)
    if not len(rows) or not rows[:, 1].all():  # no questions, or a budget ended a trajectory before its first record
        return None
    saved = score_rows(both, rows, seed, lambda r, weights: 1 - (weights @ r[:, 0]) / (weights @ r[:, 1]))
    lost = measure.difference(both, measure.correct(both, fixed), measure.correct(both, stopping), seed)
    return {
        "iterations": round(float(rows[:, 0].mean()), 6),
        "fixed": round(float(rows[:, 1].mean()), 6),
        "stopped": float((rows[:, 0] < rows[:, 1]).mean()),
        "saved": saved,
        "lost": lost,
    }


def saturation_curve(
    questions: Sequence[Question], traces: Traces, *, measure: TraceScorer
) -> list[dict[str, float | None]]:
    """Compute the costs and scores of PMSR with its stop rule at each τ, from trajectories without the rule.

    With the rule, a trajectory has the same steps up to the first iteration with a query whose similarity to an earlier
    one reaches τ, and then answers.

    Returns:
        For each τ `iterations` with a record, `stopped` (the share of questions), `calls`, `tokens` (read and written),
        `record` (the share of last records that state an accepted answer) and `answer` (the score of the answer then;
        None unless each iteration was answered), means over questions; [] unless `pmsr_fixed` was run.
    """
    fixed = traces.get(FIXED, {})
    asked = [q for q in questions if q.id in fixed and not fixed[q.id].error and _records(fixed[q.id])]
    last = max((step.iteration for q in asked for step in fixed[q.id].steps), default=0)
    answers = answers_right(asked, fixed, last, measure)
    records = {q.id: records_right(q, fixed[q.id], last) for q in asked}
    curve: list[dict[str, float | None]] = []
    for tau in TAUS if asked else ():
        stops = [_stop(fixed[q.id], tau, last + 1) for q in asked]
        steps = [_before(fixed[q.id], stop) for q, stop in zip(asked, stops, strict=True)]
        stated = [records[q.id][stop - 1] for q, stop in zip(asked, stops, strict=True) if records[q.id]]
        curve.append(
            {
                "tau": tau,
                "iterations": float(np.mean([sum(it.operator == "reason" for it in made) for made in steps])),
                "stopped": float(np.mean([stop <= last for stop in stops])),
                "calls": float(np.mean([sum(it.operator in WRITTEN for it in made) for made in steps])),
                "tokens": float(np.mean([sum(it.read + it.generated for it in made) for made in steps])),
                "record": float(np.mean(stated)) if stated else None,
                "answer": float(np.mean([answers[q.id][stop - 1] for q, stop in zip(asked, stops, strict=True)]))
                if answers
                else None,
            }
        )
    return curve


def _stop(trace: TextlessTrace, tau: float, never: int) -> int:
    """Return the iteration whose queries end the trajectory at τ; `never` if none does."""
    repeating = (s.iteration for s in trace.steps if s.operator == "liken" and (s.probability or 0.0) >= tau)
    return next(repeating, never)


def _before(trace: TextlessTrace, stop: int) -> list[Step]:
    """Return the steps of a trajectory that stops at an iteration before its search, and the steps of its answer."""
    executed = [
        s for s in trace.steps if s.iteration < stop or (s.iteration == stop and s.operator in ("rewrite", "liken"))
    ]
    answers = [step.iteration for step in trace.steps if step.operator == "answer"]
    last = max((iteration for iteration in answers if iteration < stop), default=max(answers, default=0))
    answering = [step for step in trace.steps if step.operator in ANSWERING and step.iteration == last]
    return [*(step for step in executed if step.operator not in ANSWERING), *answering]


def noise(traces: Traces) -> dict[str, int]:
    """Return the number of irrelevant passages among a pipeline's records, for pipelines that had any."""
    counted = {name: max((t.tokens.get("noise", 0) for t in rows.values()), default=0) for name, rows in traces.items()}
    return {name: count for name, count in counted.items() if count}


def _records(trace: TextlessTrace) -> int:
    return sum(step.operator == "reason" for step in trace.steps)

"""Calibration error of gates, before and after scaling, and the fit of a checkpoint's scalings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, fields
from functools import partial
from typing import Any

import numpy as np

from reflectune.core.types import Question
from reflectune.inference.pipelines.diagnostics import GOLD
from reflectune.inference.scoring.reflection_metrics import ret_rows, srt_rows
from reflectune.inference.scoring.scores import Traces, TraceScorer, traces_of_reflecting
from reflectune.inference.trace import TextlessTrace
from reflectune.metrics.reporting import gates
from reflectune.metrics.reporting.breakdown import score_rows
from reflectune.metrics.reporting.intervals import entities
from reflectune.models.schemes.calibration import GateScaling

Rows = list[tuple[float, float]]
"""(probability of a gate, 1 if the outcome is true else 0), one per decision."""


GATE_NAMES = {"gate": "retrieve", "relevance": "relevance", "ret": "ret", "srt": "srt"}
"""Name in its scheme of each measured gate."""


def calibration(
    questions: Iterable[Question],
    traces: Traces,
    *,
    measure: TraceScorer,
    seed: int,
    scalings: Mapping[str, GateScaling] = {},
) -> dict[str, dict[str, Any]]:
    """Compute each gate's expected calibration error, before and after beta calibration.

    Args:
        traces: By pipeline or stage, then by question id.
        measure: Scorer of answers, for the errors of the base model that RET predicts.
        scalings: Scalings that were applied to the traces' gates, by the gate's name in the scheme.

    Returns:
        By gate, as `gate_predictions` names them:

        - `ece`: the error of the traces' probabilities;
        - `ece_uncalibrated`: the error before the scaling that was applied, if there is one;
        - `ece_scaled`: the error after scaling, cross-fitted: each half of the questions is scaled by the fit to the
          other half. Halves are split by a hash of the first entity, or of the id of questions without one;
        - `reduction`: `ece` minus `ece_scaled`, paired by question;
        - `scale_no`, `scale_yes`, `bias`: the scaling fitted on all questions, for use on others;
        - `temperature`: a single temperature fitted instead, for `decision.json`;
        - `n`: number of questions.

        Intervals resample entities with all passages, at fixed scalings. A gate is left out if a half of the questions
        has only one outcome.
    """
    predictions = gate_predictions(questions, traces, measure)
    measured = {
        name: _calibrated(by_question, seed, scalings.get(GATE_NAMES[name]))
        for name, by_question in predictions.items()
    }
    return {name: numbers for name, numbers in measured.items() if numbers is not None}


def fitted_scalings(measured: Mapping[str, Mapping[str, Any]]) -> dict[str, GateScaling]:
    """Return the scalings that `calibration` fitted, by the gate's name in the scheme."""
    return {
        GATE_NAMES[name]: GateScaling(*(numbers[key.name] for key in fields(GateScaling)))
        for name, numbers in measured.items()
    }


def gate_predictions(
    questions: Iterable[Question], traces: Traces, measure: TraceScorer
) -> dict[str, list[tuple[Question, Rows]]]:
    """Return each gate's predictions of each question and its passages. Gates without predictions are left out.

    - `gate`: the retrieval gate of a pipeline that reflects turn by turn, against "knowledge-based";
    - `relevance`: S_rel of the stage `relevance`, against "a gold passage";
    - `ret`: MMKB-RAG's Score_RET, against "the base model's closed-book answer is wrong";
    - `srt`: its Score_SRT, against "the document states an accepted answer".
    """
    tuned = traces_of_reflecting(traces, "relevance")
    probed, judged = traces.get("relevance", {}), traces.get("reflection", {})
    rows_of: Mapping[str, Callable[[Question], Rows]] = {
        "gate": lambda question: gate_rows([question], tuned),
        "relevance": lambda question: [
            (p.s_rel, float(p.source == GOLD))
            for t in _trace(probed, question)
            for p in t.passages
            if p.s_rel is not None
        ],
        "ret": lambda question: ret_rows([question], traces, measure),
        "srt": lambda question: srt_rows(question, judged),
    }
    asked = list(questions)
    by_gate = {name: [(q, rows) for q in asked if (rows := read(q))] for name, read in rows_of.items()}
    return {name: by_question for name, by_question in by_gate.items() if by_question}


def gate_rows(questions: Iterable[Question], traces: Mapping[str, TextlessTrace]) -> Rows:
    """Return (gate probability, 1 if knowledge-based else 0) of every question of known kind."""
    question_gates = [(q, traces[q.id].gate) for q in questions if q.id in traces and q.is_knowledge_based is not None]
    return [(gate, float(bool(q.is_knowledge_based))) for q, gate in question_gates if gate is not None]


def _trace(traces: Mapping[str, TextlessTrace], question: Question) -> list[TextlessTrace]:
    return [traces[question.id]] if question.id in traces else []


def _calibrated(
    by_question: Sequence[tuple[Question, Rows]], seed: int, scaling: GateScaling | None
) -> dict[str, Any] | None:
    """Return a gate's entry; None if all outcomes of a half are equal."""
    rows = np.array([row for _, question_rows in by_question for row in question_rows], dtype=float)
    probabilities, labels = rows.T
    counts = np.array([len(question_rows) for _, question_rows in by_question])
    questions = [question for question, _ in by_question]
    half = np.repeat(gates.halves(entities(questions)), counts)
    if any(len(set(labels[half == side])) < 2 for side in (False, True)):
        return None
    before = _by_question(rows, counts)
    after = _by_question(np.column_stack([gates.cross_fit(probabilities, labels, half), labels]), counts)
    error = partial(score_rows, questions, seed=seed, statistic=gates.weighted_calibration_error)
    entry = {"ece": error(before)}
    if scaling is not None:
        raw = _by_question(np.column_stack([scaling.undo(probabilities), labels]), counts)
        entry["ece_uncalibrated"] = error(raw)
    return {
        **entry,
        "ece_scaled": error(after),
        "reduction": error(before, against=after),
        **asdict(gates.fit_scaling(probabilities, labels)),
        "temperature": gates.fit_temperature(probabilities, labels),
        "n": len(counts),
    }


def _by_question(rows: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Reshape rows (decisions, 2) to (questions, maximum decisions of a question, 2), padded with NaN."""
    padded = np.full((len(counts), counts.max(), 2), np.nan)
    padded[np.arange(counts.max()) < counts[:, None]] = rows
    return padded

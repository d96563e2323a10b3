"""Charts of the report: gate and relevance thresholds, risk against coverage, calibration."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
from markupsafe import Markup

from reflectune.core.types import Question
from reflectune.inference.pipelines.diagnostics import GOLD, SAME_ARTICLE, attribute_of
from reflectune.inference.pipelines.registry import all_forms, reflecting
from reflectune.inference.reading.ranking import product
from reflectune.inference.report import curves
from reflectune.inference.report.drawing import Chart, Line, figures
from reflectune.inference.scoring.calibration import gate_predictions, gate_rows
from reflectune.inference.scoring.reflection_metrics import ret_decisions, ret_rows
from reflectune.inference.scoring.scores import Traces, TraceScorer, traces_of_reflecting
from reflectune.inference.trace import TextlessPassage, TextlessTrace
from reflectune.metrics.reporting import gates


def charts(
    questions: Sequence[Question],
    traces: Traces,
    gamma: float,
    measure: TraceScorer,
    names: Mapping[str, str] = {},
) -> Markup:
    """Return all charts that the traces allow, as HTML, with plain names of pipelines."""
    gate = gate_rows(questions, traces_of_reflecting(traces, "relevance"))
    ret = ret_decisions(ret_rows(questions, traces, measure))
    found = (
        _gate("The gate against its threshold γ", gate, ("knowledge-based", "visual"), gamma),
        _gate("RET against its threshold γ", ret, ("the base model is wrong", "it is right"), gamma),
        _relevance(list(traces.get("relevance", {}).values())),
        _risk(measure.official(questions), traces, measure, names),
        _calibration(questions, traces, measure),
    )
    return figures(chart for chart in found if chart is not None)


def confidence(trace: TextlessTrace) -> float | None:
    """Return the product of scores of the chosen passage; without one, the answer's probability (equation 7)."""
    if trace.chosen is not None:
        scores = trace.passages[trace.chosen].scores
        if scores is not None:
            return product(scores, exponents=trace.exponents)
    return trace.confidence


def _gate(title: str, rows: Sequence[tuple[float, float]], kinds: tuple[str, str], gamma: float) -> Chart | None:
    """Draw the gate's decisions by γ.

    Args:
        rows: Pairs of the gate's probability, and 1 if retrieval is needed, else 0.
        kinds: Names of the questions that need retrieval, and of the others.
    """
    if not rows:
        return None
    probabilities, labels = [value for value, _ in rows], [label == 1 for _, label in rows]
    positives = [value for value, label in zip(probabilities, labels, strict=True) if label]
    negatives = [value for value, label in zip(probabilities, labels, strict=True) if not label]
    lines = [
        Line("right decisions", curves.accuracy_at(probabilities, labels)),
        Line(f"retrieves: {kinds[0]}", curves.share_at_least(positives)),
        Line(f"retrieves: {kinds[1]}", curves.share_at_least(negatives)),
    ]
    drawn = [line for line in lines if line.points]
    return Chart(title, "γ", "share of questions", drawn, marker=(gamma, f"γ = {gamma:g}"))


def _relevance(traces: Sequence[TextlessTrace]) -> Chart | None:
    gold = _s_rel(traces, lambda p: p.source == GOLD)
    if not gold:
        return None
    lines = [Line("evidence accepted", curves.share_at_least(gold))]
    kinds: Mapping[str, Callable[[TextlessPassage], bool]] = {
        "same article accepted": lambda p: p.source == SAME_ARTICLE,
        "look-alike accepted": lambda p: attribute_of(p.source) is not None,
    }
    s_rel_by_kind = {name: _s_rel(traces, kind) for name, kind in kinds.items()}
    lines += [Line(name, curves.share_at_least(values)) for name, values in s_rel_by_kind.items() if values]
    others = _s_rel(traces, lambda p: p.source != GOLD)
    if others:
        lines.append(Line("balanced accuracy", curves.balanced_accuracy_at(gold, others)))
    return Chart("Relevance against a threshold on S_rel", "threshold on S_rel", "share of passages", lines)


def _risk(
    questions: Sequence[Question], traces: Traces, measure: TraceScorer, titles: Mapping[str, str]
) -> Chart | None:
    names = (*reflecting(), *all_forms()["naive_rag"], "oracle_article", "closed_book")
    points = {name: _risk_points(questions, traces.get(name, {}), measure) for name in names}
    lines = [Line(titles.get(name, name), curve) for name, curve in points.items() if curve]
    note = "Answers in the order of their chosen passage's product, or of S_ans (equation 7). Lower is better."
    return Chart("Risk against coverage", "share of questions answered", "error rate", lines, note) if lines else None


def _risk_points(
    questions: Iterable[Question], traces: Mapping[str, TextlessTrace], measure: TraceScorer
) -> curves.Points:
    """Return the risk curve of a pipeline; abstentions and failures are wrong and are covered last."""
    answered = [q for q in questions if q.id in traces]
    confidences = [confidence(traces[q.id]) or 0.0 for q in answered]
    return curves.risk_coverage(confidences, [measure.correctness(q, traces[q.id]) for q in answered])


def _calibration(questions: Sequence[Question], traces: Traces, measure: TraceScorer) -> Chart | None:
    tuned = traces_of_reflecting(traces, "relevance")
    answered = [
        (p.s_ans, measure.correctness(q, tuned[q.id]))
        for q in measure.official(questions)
        if q.id in tuned
        and (chosen := tuned[q.id].chosen) is not None
        and (p := tuned[q.id].passages[chosen]).s_ans is not None
    ]
    by_gate = {
        name: [row for _, rows in by_question for row in rows]
        for name, by_question in gate_predictions(questions, traces, measure).items()
    }
    pairs = {
        "gate": by_gate.get("gate"),
        "S_rel": by_gate.get("relevance"),
        "S_ans": answered,
        "RET": by_gate.get("ret"),
        "SRT": by_gate.get("srt"),
    }
    lines, errors = [], []
    for name, predictions in pairs.items():
        if predictions:
            values, outcomes = [value for value, _ in predictions], [outcome for _, outcome in predictions]
            error = gates.expected_calibration_error(np.array(values), np.array(outcomes))
            lines.append(Line(name, curves.calibration(values, outcomes), dots=True))
            errors.append(f"{name} {error:.3f}")
    if not lines:
        return None
    note = f"Ten bins; calibrated is the diagonal. Expected calibration error: {', '.join(errors)}."
    return Chart("Calibration", "probability given", "share that was right", lines, note, diagonal=True)


def _s_rel(traces: Iterable[TextlessTrace], accepts: Callable[[TextlessPassage], bool]) -> list[float]:
    return [p.s_rel for t in traces for p in t.passages if p.s_rel is not None and accepts(p)]

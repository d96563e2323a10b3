"""The report's first screen: the finding as a sentence, scores with intervals, and where answers are lost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from markupsafe import Markup

from reflectune.core.html import render
from reflectune.inference.pipelines.registry import iterative, reflecting
from reflectune.inference.report.comparison import ORACLE, headline_score
from reflectune.inference.report.tables import plain_names
from reflectune.inference.scoring.evaluation import BEST_BASELINE, BESTS
from reflectune.inference.scoring.losses import OUTCOMES, RIGHT


def finding(metrics: Mapping[str, Any]) -> str:
    """Return the method's score and its lead over the best baseline as a sentence; "" without a scored method."""
    method, names = _method(metrics), plain_names(metrics)
    if not (score := headline_score(metrics["pipelines"].get(method, {}))):
        return ""
    value, low, high = (f"{100 * score[key]:.1f}" for key in ("value", "low", "high"))
    sentence = f"{names[method]} scores {value} %, 95 % interval {low} to {high}"
    if not (lead := metrics["comparisons"].get(f"{method} - {BEST_BASELINE}")):
        return sentence + "."
    verdict = "a tie"
    if lead["low"] > 0:
        verdict = "a lead"
    elif lead["high"] < 0:
        verdict = "behind"
    value, low, high = (f"{100 * lead[key]:+.1f}".replace("-", "−") for key in ("value", "low", "high"))
    difference = f"The difference is {verdict}: {value} points, {low} to {high}."
    return f"{sentence}; the best baseline is {names[metrics[BEST_BASELINE]]}. {difference}"


def lost(metrics: Mapping[str, Any]) -> str:
    """Return a sentence with the steps at which the method loses answers, most frequent first; "" without a method."""
    counts = {key: count for key, count in metrics["losses"].get(_method(metrics), {}).items() if key != RIGHT}
    steps = ", ".join(f"{counts[key]} {OUTCOMES[key]}" for key in sorted(counts, key=lambda key: -counts[key]))
    return f"{plain_names(metrics)[_method(metrics)]} loses {sum(counts.values())} answers: {steps}." if counts else ""


def scores(metrics: Mapping[str, Any]) -> Markup:
    """Return the pipelines' scores with intervals as a chart, whose axis ends above the highest interval."""
    rows = _rows(metrics)
    highest = max((row["score"]["high"] for row in rows), default=1.0)
    end = next(limit for limit in (0.2, 0.4, 0.6, 0.8, 1.0) if limit >= min(highest, 1.0))
    guide = next((row["score"]["value"] for row in rows if row["kind"] == "best baseline"), None)
    return render("inference/report/templates/scores.html", rows=rows, end=end, guide=guide)


def losses(metrics: Mapping[str, Any]) -> Markup:
    """Return the outcomes of each pipeline's questions as stacked bars, and their counts as a table."""
    rows = [{**row, "counts": counts} for row in _rows(metrics) if (counts := metrics["losses"].get(row["name"]))]
    outcomes = {key: title for key, title in OUTCOMES.items() if any(key in row["counts"] for row in rows)}
    return render("inference/report/templates/losses.html", rows=rows, outcomes=outcomes)


def _rows(metrics: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return name, title, score and kind of each scored pipeline, best first; oracles last."""
    names, kinds = plain_names(metrics), {metrics[BEST_BASELINE]: "best baseline", _method(metrics): "method"}
    rows = [
        {
            "name": name,
            "title": names[name],
            "score": score,
            "kind": "oracle" if ORACLE in name else kinds.get(name, ""),
        }
        for name, table in metrics["pipelines"].items()
        if name not in BESTS and (score := headline_score(table))
    ]
    return sorted(rows, key=lambda row: (row["kind"] == "oracle", -row["score"]["value"]))


def _method(metrics: Mapping[str, Any]) -> str:
    """Return the run's only reflecting pipeline, or else its only iterative one; "" if there is none, or several."""
    ran = [name for name in reflecting() if name in metrics["pipelines"]]
    ran = ran or [name for name in iterative() if name in metrics["pipelines"]]
    return ran[0] if len(ran) == 1 else ""

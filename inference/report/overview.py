"""The report's first screen: the finding as a sentence, scores with intervals, and where answers are lost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlencode

from markupsafe import Markup

from reflectune.core.html import render
from reflectune.inference.pipelines.recipe import CONTROLS
from reflectune.inference.pipelines.registry import all_forms, iterative, reflecting
from reflectune.inference.report.comparison import ORACLE, headline_score
from reflectune.inference.report.tables import plain_names
from reflectune.inference.scoring.evaluation import BEST_BASELINE, BESTS
from reflectune.inference.scoring.losses import OUTCOMES, RIGHT

_ENDS: Final = (0.2, 0.4, 0.6, 0.8, 1.0)
"""Ends of the scores' axis; the first that no interval exceeds is taken."""
_LEAST_SHARE = 0.035
"""Share of a bar from which on a segment holds its number."""


def finding(metrics: Mapping[str, Any]) -> str:
    """Return the method's score and its lead over the best baseline as a sentence; "" without a scored method."""
    method, best, names = _method(metrics), metrics[BEST_BASELINE], plain_names(metrics)
    score = headline_score(metrics["pipelines"][method]) if method else None
    if not score:
        return ""
    sentence = f"{names[method]} scores {_percent(score)} %, 95 % interval {_interval(score)}"
    lead = metrics["comparisons"].get(f"{method} - {BEST_BASELINE}")
    if not (best and lead):
        return sentence + "."
    verdict = "a lead" if lead["low"] > 0 else "behind" if lead["high"] < 0 else "a tie"
    value, low, high = (f"{100 * lead[key]:+.1f}".replace("-", "−") for key in ("value", "low", "high"))
    difference = f"The difference is {verdict}: {value} points, {low} to {high}."
    return f"{sentence}; the best baseline is {names[best]}. {difference}"


def lost(metrics: Mapping[str, Any]) -> str:
    """Return at which steps the method loses answers, the most frequent first; "" without a method."""
    counts = {key: count for key, count in metrics["losses"].get(_method(metrics), {}).items() if key != RIGHT}
    if not counts:
        return ""
    steps = ", ".join(f"{counts[key]} {OUTCOMES[key]}" for key in sorted(counts, key=lambda key: -counts[key]))
    return f"{plain_names(metrics)[_method(metrics)]} loses {sum(counts.values())} answers: {steps}."


def scores(metrics: Mapping[str, Any]) -> Markup:
    """Return the pipelines' scores with intervals as a chart; rows of `_rows`."""
    rows = _rows(metrics)
    highest = max((row["score"]["high"] for row in rows), default=1.0)
    end = next((limit for limit in _ENDS if limit >= highest), 1.0)
    best = next((row["score"]["value"] for row in rows if row["mark"] == "best baseline"), None)
    for row in rows:
        row["bar"] = {key: f"{100 * min(row['score'][key], end) / end:.2f}%" for key in ("value", "low", "high")}
        row["text"], row["interval"] = _percent(row["score"]), _interval(row["score"])
    return render(
        "inference/report/templates/scores.html",
        rows=rows,
        ticks=[f"{25 * place * end:g}" for place in range(5)],
        guide=None if best is None else f"{100 * best / end:.2f}%",
    )


def losses(metrics: Mapping[str, Any]) -> Markup:
    """Return the outcomes of each pipeline's questions as stacked bars, and their counts as a table."""
    rows = [row for row in _rows(metrics) if metrics["losses"].get(row["name"])]
    shown = [key for key in OUTCOMES if any(key in metrics["losses"][row["name"]] for row in rows)]
    for row in rows:
        counts = metrics["losses"][row["name"]]
        total, start, row["parts"] = sum(counts.values()), 0.0, []
        for key in shown:
            share = counts.get(key, 0) / total
            row["parts"].append(
                {
                    "key": key,
                    "title": OUTCOMES[key],
                    "count": counts.get(key, 0),
                    "percent": f"{100 * share:.1f}",
                    "x": f"{100 * start:.3f}%",
                    "width": f"{100 * share:.3f}%",
                    "middle": f"{100 * (start + share / 2):.3f}%",
                    "label": f"{100 * share:.0f}" if share >= _LEAST_SHARE else "",
                    "link": "#" + urlencode({"pipeline": row["name"], "outcome": key}),
                }
            )
            start += share
    return render("inference/report/templates/losses.html", rows=rows, outcomes=[(key, OUTCOMES[key]) for key in shown])


def _rows(metrics: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return name, title, score, kind and mark of each scored pipeline, best first; oracles last."""
    names, method, rows = plain_names(metrics), _method(metrics), []
    for name, table in metrics["pipelines"].items():
        if name not in BESTS and (score := headline_score(table)):
            mark = "method" if name == method else "best baseline" if name == metrics[BEST_BASELINE] else ""
            kind = "oracle" if ORACLE in name else "control" if name in all_forms()[CONTROLS] else ""
            rows.append({"name": name, "title": names[name], "score": score, "mark": mark, "kind": mark or kind})
    return sorted(rows, key=lambda row: (row["kind"] == "oracle", -row["score"]["value"]))


def _method(metrics: Mapping[str, Any]) -> str:
    """Return the run's reflecting pipeline, else its only iterative one; "" without."""
    ran: Sequence[str] = [name for name in reflecting() if name in metrics["pipelines"]]
    ran = ran or [name for name in iterative() if name in metrics["pipelines"]]
    return ran[0] if len(ran) == 1 else ""


def _percent(score: Mapping[str, float]) -> str:
    return f"{100 * score['value']:.1f}"


def _interval(score: Mapping[str, float]) -> str:
    return f"{100 * score['low']:.1f} to {100 * score['high']:.1f}"

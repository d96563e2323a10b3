"""A sweep's plots, as a page and as SVG files: accuracy and retrieval rate along each axis, and reliability."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup, escape

from reflectune.core.durable import write_atomically
from reflectune.core.html import Cell, Table, read_asset, render
from reflectune.inference.report import curves
from reflectune.inference.report.curves import UNIT_TICKS, Line, line_chart
from reflectune.inference.sweeps.config import SweepConfig
from reflectune.inference.sweeps.judging import JUDGED
from reflectune.inference.sweeps.outcomes import Judgement, Results
from reflectune.inference.sweeps.points import show
from reflectune.metrics.reporting import gates
from reflectune.metrics.reporting.breakdown import OVERALL

Record = Mapping[str, Any]

UNIT = ("gamma", "threshold")
"""Axes that are probabilities; the values of any other one are set side by side."""


def write_page(folder: Path, config: SweepConfig, results: Results, record: Record) -> None:
    """Write `sweep.html`, and each plot as `NAME.svg`."""
    plots = charts(config, results, record)
    style = read_asset("inference/report/page.css")
    for name, figure in plots.items():
        write_atomically(folder / f"{name}.svg", standalone(figure, style.text))
    passes = record["forward_passes"]
    lead = (
        f"{record['questions']} questions at {len(record['points'])} points of {config.pipeline}, "
        f"model {config.model}. Forward passes made: {passes['made']}; served from memory: {passes['saved']}."
    )
    page = render(
        "inference/sweeps/templates/sweep.html",
        lead=lead,
        charts=list(plots.values()),
        points=_table(record),
        style=style,
    )
    write_atomically(folder / "sweep.html", page)


def charts(config: SweepConfig, results: Results, record: Record) -> dict[str, Markup]:
    """Every plot as HTML, by name: one an axis of the grid, and the reliability diagrams."""
    plots = {name: axis_chart(name, config.start(), record["points"]) for name in config.grid}
    for kind, (name, outcome) in JUDGED[config.pipeline].names.items():
        judged = results.judgements(kind)
        if judged:
            plots[f"reliability_{kind}"] = reliability(name, outcome, judged)
    return plots


def axis_chart(axis: str, start: Mapping[str, Any], points: Sequence[Record]) -> Markup:
    """Accuracy, with its interval, and retrieval rate along one setting; the others as they start."""
    others = {name: show(value) for name, value in start.items() if name != axis}
    axis_points = [p for p in points if axis in p["settings"] and _matches(p["settings"], others)]
    axis_points.sort(key=lambda point: _order(point["settings"][axis]))
    places = _places(axis, [point["settings"][axis] for point in axis_points])
    scored = [(x, point) for x, point in zip(places, axis_points, strict=True) if point["accuracy"] is not None]
    scale = not any(
        isinstance(point["settings"][axis], (bool, str)) and point["settings"][axis] != "auto" for point in axis_points
    )
    low, high = ([(x, point["accuracy"][end]) for x, point in scored] for end in ("low", "high"))
    fixed = ", ".join(f"{name} {value}" for name, value in others.items())
    return line_chart(
        f"Accuracy against {axis}",
        axis,
        "accuracy",
        [
            Line("accuracy", [(x, p["accuracy"]["value"]) for x, p in scored], dots=True, joined=scale),
            Line("retrieval rate (right)", [(x, p["retrieval_rate"]) for x, p in scored], dots=True, joined=scale),
            Line("accuracy, 95 % interval", [*low, *reversed(high), *low[:1]], dots=not scale, joined=scale),
        ],
        note=f"The data set's metric; the others fixed: {fixed}." if fixed else "The data set's metric.",
        x_ticks=UNIT_TICKS if axis in UNIT else [(x, show(point["settings"][axis])) for x, point in scored],
        right_label="retrieval rate",
    )


def reliability(name: str, outcome: str, judged: Sequence[Judgement]) -> Markup:
    """How often what a probability speaks of is so, in ten bins; with the calibration error, and AUROC if it exists."""
    values, truth = [judgement.probability for judgement in judged], [float(judgement.true) for judgement in judged]
    error = gates.expected_calibration_error(np.array(values), np.array(truth))
    told = f"{len(judged)} probabilities. Expected calibration error {error:.3f}"
    if len(set(truth)) == 2:
        told += f", AUROC {gates.auroc(np.array(values), np.array(truth)):.3f}"
    points = curves.calibration(values, truth)
    return line_chart(
        f"Reliability of {name}",
        "probability given",
        outcome,
        [Line(name, points, dots=True)],
        note=f"{told}. Ten bins; calibrated is the diagonal.",
        diagonal=True,
    )


def standalone(figure: str, style: str) -> str:
    """The SVG of a figure as a file of its own."""
    drawing = re.search(r"<svg.*</svg>", figure, re.DOTALL)
    if drawing is None:
        raise ValueError("expected a figure with an <svg>")
    return (
        drawing[0]
        .replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" font-family="sans-serif" ', 1)
        .replace(">", f"><style>{escape(style)}</style>", 1)
    )


def _matches(settings: Mapping[str, Any], wanted: Mapping[str, str]) -> bool:
    return all(name not in settings or show(settings[name]) == value for name, value in wanted.items())


def _order(value: Any) -> tuple[bool, float, str]:
    """Numbers by size, then words."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return (not number, float(value) if number else 0.0, str(value))


def _places(axis: str, values: Sequence[Any]) -> list[float]:
    if axis in UNIT:
        return [float(value) for value in values]
    return [(i + 0.5) / len(values) for i in range(len(values))]


def _table(record: Record) -> Table:
    points, titles = record["points"], record["metric"]["columns"]
    metric_columns = [column for column in titles if column != OVERALL]
    columns = ("accuracy", *metric_columns, "visual", "retrieval_rate", "passages_read")
    head = ["point", *(titles.get(column, column.replace("_", " ")) for column in columns)]
    return Table(head, [[point["name"], *(_cell(point.get(column)) for column in columns)] for point in points])


def _cell(value: Any) -> str | Cell:
    if value is None:
        return "–"
    if isinstance(value, Mapping):
        return Cell(f"{100 * value['value']:.1f}", f"{100 * value['low']:.1f} to {100 * value['high']:.1f}")
    return f"{value:.3f}"

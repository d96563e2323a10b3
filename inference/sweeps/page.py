"""Page and SVG files of a sweep: accuracy and retrieval rate along each axis, and reliability diagrams."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from reflectune.core.durable import write_atomically
from reflectune.core.html import Cell, Table, read_asset, render
from reflectune.inference.report import curves
from reflectune.inference.report.drawing import UNIT_TICKS, Chart, Line, can_draw, draw, figures
from reflectune.inference.sweeps.judging import RELIABILITY_CHECKS
from reflectune.inference.sweeps.outcomes import CheckedProbability, GridOutcomes
from reflectune.inference.sweeps.points import show
from reflectune.metrics.reporting import gates
from reflectune.metrics.reporting.breakdown import OVERALL

Record = Mapping[str, Any]

UNIT = ("gamma", "threshold")
"""Axes that are probabilities. Values of any other axis are spaced evenly."""


def write_page(folder: Path, outcomes: GridOutcomes, record: Record) -> None:
    """Write `sweep.html`, and each chart as `NAME.svg` if matplotlib is installed."""
    plots = charts(outcomes, record)
    if can_draw():
        for name, chart in plots.items():
            write_atomically(folder / f"{name}.svg", draw(chart))
    passes = record["forward_passes"]
    lead = (
        f"{record['questions']} questions at {len(record['points'])} points of {record['pipeline']}, "
        f"model {record['model']}. Intervals over {record['resampled']}. "
        f"Forward passes made: {passes['made']}; served from memory: {passes['saved']}."
    )
    page = render(
        "inference/sweeps/templates/sweep.html",
        lead=lead,
        charts=figures(plots.values()),
        points=_table(record),
        style=read_asset("inference/report/page.css"),
    )
    write_atomically(folder / "sweep.html", page)


def charts(outcomes: GridOutcomes, record: Record) -> dict[str, Chart]:
    """Return charts by name: one per axis of the grid, and the reliability diagrams."""
    plots = {name: axis_chart(name, record["start"], record["points"]) for name in record["start"]}
    for kind, (name, outcome) in RELIABILITY_CHECKS[record["pipeline"]].names.items():
        judged = outcomes.judgements(kind)
        if judged:
            plots[f"reliability_{kind}"] = reliability(name, outcome, judged)
    return plots


def axis_chart(axis: str, start: Mapping[str, Any], points: Sequence[Record]) -> Chart:
    """Chart accuracy with its interval, and retrieval rate, along one setting. The other settings keep their start."""
    others = {name: show(value) for name, value in start.items() if name != axis}
    axis_points = [
        point
        for point in points
        if axis in point["settings"]
        and all(name not in others or others[name] == show(value) for name, value in point["settings"].items())
    ]
    axis_points.sort(key=lambda point: _order(point["settings"][axis]))
    positions = _positions(axis, [point["settings"][axis] for point in axis_points])
    scored = [(x, point) for x, point in zip(positions, axis_points, strict=True) if point["accuracy"] is not None]
    is_scale = not any(
        isinstance(point["settings"][axis], (bool, str, list)) and point["settings"][axis] != "auto"
        for point in axis_points
    )
    low, high = ([(x, point["accuracy"][end]) for x, point in scored] for end in ("low", "high"))
    fixed = ", ".join(f"{name} {value}" for name, value in others.items())
    return Chart(
        f"Accuracy against {axis}",
        axis,
        "accuracy",
        [
            Line("accuracy", [(x, p["accuracy"]["value"]) for x, p in scored], dots=True, joined=is_scale),
            Line("retrieval rate (right)", [(x, p["retrieval_rate"]) for x, p in scored], dots=True, joined=is_scale),
            Line("accuracy, 95 % interval", [*low, *reversed(high), *low[:1]], dots=not is_scale, joined=is_scale),
        ],
        note=f"The data set's metric; the others fixed: {fixed}." if fixed else "The data set's metric.",
        x_ticks=UNIT_TICKS if axis in UNIT else [(x, show(point["settings"][axis])) for x, point in scored],
        right_label="retrieval rate",
    )


def reliability(name: str, outcome: str, judged: Sequence[CheckedProbability]) -> Chart:
    """Chart the share of true outcomes by predicted probability, in ten bins, with calibration error and AUROC."""
    values, truth = [judgement.probability for judgement in judged], [float(judgement.true) for judgement in judged]
    error = gates.expected_calibration_error(np.array(values), np.array(truth))
    note = f"{len(judged)} probabilities. Expected calibration error {error:.3f}"
    if len(set(truth)) == 2:
        note += f", AUROC {gates.auroc(np.array(values), np.array(truth)):.3f}"
    return Chart(
        f"Reliability of {name}",
        "probability given",
        outcome,
        [Line(name, curves.calibration(values, truth), dots=True)],
        note=f"{note}. Ten bins; calibrated is the diagonal.",
        diagonal=True,
    )


def _order(value: Any) -> tuple[bool, float, str]:
    """Return a sort key: numbers by size, then words."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return (not number, float(value) if number else 0.0, str(value))


def _positions(axis: str, values: Sequence[Any]) -> list[float]:
    if axis in UNIT:
        return [float(value) for value in values]
    return [(i + 0.5) / len(values) for i in range(len(values))]


def _table(record: Record) -> Table:
    points, titles = record["points"], record["metric"]["columns"]
    metric_columns = [column for column in titles if column != OVERALL]
    columns = ("accuracy", "over_start", *metric_columns, "visual", "retrieval_rate", "passages_read")
    head = ["point", *(titles.get(column, column.replace("_", " ")) for column in columns)]
    return Table(head, [[point["name"], *(_cell(point.get(column)) for column in columns)] for point in points])


def _cell(value: Any) -> str | Cell:
    if value is None:
        return "–"
    if isinstance(value, Mapping):
        return Cell(f"{100 * value['value']:.1f}", f"{100 * value['low']:.1f} to {100 * value['high']:.1f}")
    return f"{value:.3f}"

"""Curves: their points, from traces, and line charts of them as inline SVG.

The points are of gate and relevance thresholds, risk against coverage, and calibration. A chart needs no library and no
network; its colours come from the page's style sheet, light or dark.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup

from reflectune.core.html import render
from reflectune.metrics.reporting import gates

Points = list[tuple[float, float]]

THRESHOLDS = tuple(np.linspace(0.0, 1.0, 101).tolist())
WIDTH, HEIGHT = 440, 280
LEFT, RIGHT, TOP, BOTTOM = 54, 14, 12, 44
TICKS = (0.0, 0.25, 0.5, 0.75, 1.0)
UNIT_TICKS = tuple((tick, f"{tick:g}") for tick in TICKS)


def share_at_least(probabilities: Sequence[float], thresholds: Sequence[float] = THRESHOLDS) -> Points:
    """(threshold, share of probabilities ≥ it): what a gate with that γ lets through. No point if there is nothing."""
    values = np.sort(np.asarray(probabilities, dtype=float))
    if not len(values):
        return []
    below = np.searchsorted(values, np.asarray(thresholds), side="left")
    return [(float(t), 1.0 - int(count) / len(values)) for t, count in zip(thresholds, below, strict=True)]


def accuracy_at(
    probabilities: Sequence[float], labels: Sequence[bool], thresholds: Sequence[float] = THRESHOLDS
) -> Points:
    """(threshold, share of items where `probability ≥ threshold` equals the label)."""
    values, truth = np.asarray(probabilities, dtype=float), np.asarray(labels, dtype=bool)
    if not len(values):
        return []
    return [(float(t), float(np.mean((values >= t) == truth))) for t in thresholds]


def balanced_accuracy_at(
    positives: Sequence[float], negatives: Sequence[float], thresholds: Sequence[float] = THRESHOLDS
) -> Points:
    """(threshold, mean of the share of positives ≥ it and the share of negatives < it)."""
    accepted, kept = share_at_least(positives, thresholds), share_at_least(negatives, thresholds)
    return [(t, (yes + 1.0 - no) / 2) for (t, yes), (_, no) in zip(accepted, kept, strict=False)]


def risk_coverage(confidences: Sequence[float], correct: Sequence[float], most: int = 200) -> Points:
    """(coverage, error rate among the most confident answers that make up this share), thinned to `most` points."""
    if not len(confidences):
        return []
    coverage, risk = gates.risk_coverage(confidences, correct)
    keep = np.unique(np.linspace(0, len(coverage) - 1, min(most, len(coverage))).round().astype(int))
    return [(float(coverage[i]), float(risk[i])) for i in keep]


def calibration(probabilities: Sequence[float], outcomes: Sequence[float], bins: int = 10) -> Points:
    """(mean probability, mean outcome) of each equal-width bin that holds at least one item."""
    values, truth = np.asarray(probabilities, dtype=float), np.asarray(outcomes, dtype=float)
    places = np.minimum((values * bins).astype(int), bins - 1)
    filled = [places == number for number in range(bins) if np.any(places == number)]
    return [(float(values[inside].mean()), float(truth[inside].mean())) for inside in filled]


@dataclass(frozen=True)
class Line:
    """One line of a chart: its name in the legend, and its points, both coordinates in [0, 1].

    `dots` draws a marker at each point, for a few points that are measurements rather than a curve. `joined` draws the
    line between them, which is left out where there is nothing between two points.
    """

    name: str
    points: Sequence[tuple[float, float]]
    dots: bool = False
    joined: bool = True


def line_chart(
    title: str,
    x_label: str,
    y_label: str,
    lines: Sequence[Line],
    *,
    note: str = "",
    marker: tuple[float, str] | None = None,
    diagonal: bool = False,
    x_ticks: Sequence[tuple[float, str]] = UNIT_TICKS,
    right_label: str = "",
) -> Markup:
    """An HTML `<figure>` with a unit-square chart, a legend and a note.

    Args:
        title: What the chart shows.
        x_label: Name of the horizontal axis.
        y_label: Name of the vertical axis.
        lines: At most six; the i-th has the CSS class `line-{i}`.
        note: A sentence under the legend.
        marker: A vertical line at an x, with its label.
        diagonal: Whether to draw y = x, where a calibrated probability lies.
        x_ticks: Where the horizontal axis is labelled, in [0, 1], and how.
        right_label: Name of a second vertical axis, on the right, with the same scale.
    """
    return render(
        "inference/report/templates/chart.html",
        title=title,
        x_label=x_label,
        y_label=y_label,
        lines=lines,
        note=note,
        marker=marker,
        diagonal=diagonal,
        x_ticks=x_ticks,
        y_ticks=TICKS,
        right_label=right_label,
        width=WIDTH,
        height=HEIGHT,
        left=LEFT,
        right=WIDTH - RIGHT,
        top=TOP,
        middle=(TOP + HEIGHT - BOTTOM) / 2,
        x=_x,
        y=_y,
        path=_path,
    )


def _x(value: float, shift: float = 0) -> str:
    """The SVG coordinate of an x in [0, 1], `shift` pixels to the right of it."""
    return f"{LEFT + value * (WIDTH - LEFT - RIGHT) + shift:.1f}"


def _y(value: float, shift: float = 0) -> str:
    """The SVG coordinate of a y in [0, 1], `shift` pixels below it."""
    return f"{HEIGHT - BOTTOM - value * (HEIGHT - TOP - BOTTOM) + shift:.1f}"


def _path(points: Sequence[tuple[float, float]]) -> str:
    """SVG's commands for a line through points."""
    return "M" + " L".join(f"{_x(x)} {_y(y)}" for x, y in points)

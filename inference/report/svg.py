"""Line charts as inline SVG: no library, no network; colours come from the page's style sheet, light or dark."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass

WIDTH, HEIGHT = 440, 280
LEFT, RIGHT, TOP, BOTTOM = 54, 14, 12, 44
TICKS = (0.0, 0.25, 0.5, 0.75, 1.0)
UNIT_TICKS = tuple((tick, f"{tick:g}") for tick in TICKS)


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
) -> str:
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
    body = [_grid(x_label, y_label, x_ticks)]
    if right_label:
        body.append(_upright(right_label, WIDTH - 4))
    if diagonal:
        body.append(_path([(0.0, 0.0), (1.0, 1.0)], "reference"))
    if marker is not None:
        body.append(_marker(*marker))
    for number, line in enumerate(lines):
        if line.joined:
            body.append(_path(line.points, f"line line-{number}"))
        if line.dots:
            body.extend(_dot(x, y, line.name, number) for x, y in line.points)
    legend = "".join(
        f'<span><i class="swatch line-{number}"></i>{html.escape(line.name)}</span>'
        for number, line in enumerate(lines)
    )
    caption = f"<p>{html.escape(note)}</p>" if note else ""
    return (
        f'<figure class="chart"><h3>{html.escape(title)}</h3>'
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{html.escape(title)}">{"".join(body)}</svg>'
        f'<figcaption><div class="legend">{legend}</div>{caption}</figcaption></figure>'
    )


def _x(value: float) -> float:
    return LEFT + value * (WIDTH - LEFT - RIGHT)


def _y(value: float) -> float:
    return HEIGHT - BOTTOM - value * (HEIGHT - TOP - BOTTOM)


def _grid(x_label: str, y_label: str, x_ticks: Sequence[tuple[float, str]]) -> str:
    parts = []
    for tick in TICKS:
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{_y(tick):.1f}" y2="{_y(tick):.1f}"/>')
        parts.append(f'<text class="tick" text-anchor="end" x="{LEFT - 6}" y="{_y(tick) + 4:.1f}">{tick:g}</text>')
    for tick, name in x_ticks:
        place = f'x="{_x(tick):.1f}" y="{_y(0) + 16:.1f}"'
        parts.append(f'<text class="tick" text-anchor="middle" {place}>{html.escape(name)}</text>')
    parts.append(
        f'<text class="axis" text-anchor="middle" x="{_x(0.5):.1f}" y="{HEIGHT - 8}">{html.escape(x_label)}</text>'
    )
    return "".join([*parts, _upright(y_label, 12)])


def _upright(label: str, x: int) -> str:
    middle = (TOP + HEIGHT - BOTTOM) / 2
    return (
        f'<text class="axis" text-anchor="middle" transform="rotate(-90 {x} {middle})" x="{x}" y="{middle}">'
        f"{html.escape(label)}</text>"
    )


def _path(points: Sequence[tuple[float, float]], style: str) -> str:
    if not points:
        return ""
    steps = " L".join(f"{_x(x):.1f} {_y(y):.1f}" for x, y in points)
    return f'<path class="{style}" d="M{steps}"/>'


def _marker(x: float, label: str) -> str:
    anchor = "end" if x > 0.5 else "start"
    shift = -5 if x > 0.5 else 5
    place = f'x="{_x(x) + shift:.1f}" y="{_y(0) - 6:.1f}"'
    return (
        f'<line class="marker" x1="{_x(x):.1f}" x2="{_x(x):.1f}" y1="{TOP}" y2="{_y(0):.1f}"/>'
        f'<text class="tick" text-anchor="{anchor}" {place}>{html.escape(label)}</text>'
    )


def _dot(x: float, y: float, name: str, number: int) -> str:
    label = html.escape(f"{name}: {x:.3f}, {y:.3f}")
    place = f'cx="{_x(x):.1f}" cy="{_y(y):.1f}"'
    return f'<circle class="dot line-{number}" {place} r="3.5"><title>{label}</title></circle>'

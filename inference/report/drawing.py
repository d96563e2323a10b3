"""Line charts as SVG, drawn by matplotlib."""

from __future__ import annotations

import base64
import importlib.util
import io
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from markupsafe import Markup

from reflectune.core.errors import UserError
from reflectune.core.html import render

if TYPE_CHECKING:
    from matplotlib.axes import Axes

UNIT_TICKS: Final = tuple((tick, f"{tick:g}") for tick in (0.0, 0.25, 0.5, 0.75, 1.0))
COLOURS: Final = ("#3b82f6", "#ea7317", "#14a38b", "#a855f7", "#8a9099", "#e0528a")
"""Colours of lines, readable on a light and on a dark page."""
GREY: Final = "#7f868f"
_STYLES: Final = ("-", (0, (5, 2)), ":", "-.", (0, (1, 1)), (0, (3, 1)))
_SETTINGS: Final[Any] = {
    "svg.hashsalt": "reflectune",  # ids that do not change from run to run
    "svg.fonttype": "none",
    "text.parse_math": False,
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    **dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), GREY),
}
INSTALL: Final = "charts are drawn by matplotlib: pip install 'reflectune[report]'"


@dataclass(frozen=True)
class Line:
    """A line of a chart.

    Attributes:
        name: Name in the legend.
        points: (x, y), both in [0, 1].
        dots: Draw a marker at each point.
        joined: Draw the line between the points.
    """

    name: str
    points: Sequence[tuple[float, float]]
    dots: bool = False
    joined: bool = True


@dataclass(frozen=True)
class Chart:
    """A chart whose axes both range from 0 to 1.

    Attributes:
        title: Title, above the chart.
        x_label: Name of the horizontal axis.
        y_label: Name of the vertical axis.
        lines: Lines; the six colours repeat with other dashes.
        note: Sentence below the chart.
        marker: x of a vertical line, and its label.
        diagonal: Draw y = x, where a calibrated probability lies.
        x_ticks: Positions in [0, 1] and labels of the horizontal axis.
        right_label: Name of a second vertical axis with the same scale.
    """

    title: str
    x_label: str
    y_label: str
    lines: Sequence[Line]
    note: str = ""
    marker: tuple[float, str] | None = None
    diagonal: bool = False
    x_ticks: Sequence[tuple[float, str]] = UNIT_TICKS
    right_label: str = ""


def figures(charts: Iterable[Chart]) -> Markup:
    """Return charts as HTML; a line that names the missing package if matplotlib is not installed.

    Each SVG is an `<img>` with a data URI: the page's policy forbids the `style` attributes that matplotlib writes.
    """
    charts = list(charts)
    if charts and not can_draw():
        return render("inference/report/templates/tables.html", tables=[], notes=[f"No charts: {INSTALL}."])
    drawn = [(chart, base64.b64encode(draw(chart).encode()).decode()) for chart in charts]
    return render("inference/report/templates/charts.html", charts=drawn)


def can_draw() -> bool:
    """Return True if matplotlib is installed."""
    return importlib.util.find_spec("matplotlib") is not None


def draw(chart: Chart) -> str:
    """Draw a chart.

    Returns:
        An SVG document with the chart and its legend.

    Raises:
        UserError: matplotlib is not installed.
    """
    buffer = io.StringIO()
    with canvas(buffer, 4.6, 3.3) as axes:
        for position, line in enumerate(chart.lines):
            _draw_line(axes, line, position)
        if chart.diagonal:
            axes.plot((0, 1), (0, 1), color=GREY, linewidth=0.8, linestyle=":", zorder=1)
        if chart.marker:
            x, label = chart.marker
            axes.axvline(x, color=GREY, linewidth=0.8, linestyle="--", zorder=1)
            axes.annotate(
                label,
                (x, 0.02),
                (4 if x <= 0.5 else -4, 0),
                textcoords="offset points",
                ha="left" if x <= 0.5 else "right",
            )
        axes.set_xlim(-0.02, 1.02)
        axes.set_ylim(-0.02, 1.02)
        axes.set_xticks([x for x, _ in chart.x_ticks], [label for _, label in chart.x_ticks])
        axes.set_yticks([y for y, _ in UNIT_TICKS], [label for _, label in UNIT_TICKS])
        axes.set_xlabel(chart.x_label)
        axes.set_ylabel(chart.y_label)
        axes.grid(axis="y", color=GREY, alpha=0.25, linewidth=0.8)
        if chart.right_label:
            axes.secondary_yaxis("right").set_ylabel(chart.right_label)
        if chart.lines:
            axes.figure.legend(loc="outside lower center", ncols=2, frameon=False)
    return buffer.getvalue()


@contextmanager
def canvas(buffer: io.StringIO, width: float, height: float, **options: Any) -> Iterator[Axes]:
    """Yield axes to draw on, and write them as SVG when the block ends. Equal drawings give equal bytes.

    Args:
        buffer: Where the SVG is written.
        width: In inches, of 72 SVG units each.
        height: In inches.
        **options: Options of `savefig`; the background is transparent if none are given.

    Raises:
        UserError: matplotlib is not installed.
    """
    if not can_draw():
        raise UserError(INSTALL)
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context(_SETTINGS):
        figure = Figure(figsize=(width, height), layout="constrained")
        yield figure.add_subplot()
        metadata = {"Date": None, "Creator": None}
        figure.savefig(buffer, format="svg", metadata=metadata, **(options or {"transparent": True}))


def _draw_line(axes: Axes, line: Line, position: int) -> None:
    axes.plot(
        [x for x, _ in line.points],
        [y for _, y in line.points],
        label=line.name,
        color=COLOURS[position % len(COLOURS)],
        linestyle=_STYLES[(position + position // len(COLOURS)) % len(_STYLES)] if line.joined else "none",
        marker="o" if line.dots else "",
        markersize=4,
        linewidth=1.8,
    )

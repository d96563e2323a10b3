"""The plot of a comparison: score against cost, a dot for each pipeline."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from reflectune.core.html import render
from reflectune.inference.report.trajectories import COST_HEADS, number

LEFT, RIGHT, TOP, BOTTOM = 56.0, 756.0, 24.0, 384.0
"""The plot's edges, in the drawing's units."""
_LETTER, _LINE, _DOT = 6.6, 13.0, 5.0
"""A label's width by letter, its height, and the room that a dot takes to each side."""
_TOPS = (0.1, 0.25, 0.5, 1.0)
_MOST_TICKS = 8
_LEAST = 1e-3
"""What a cost of nothing is drawn as."""

Box = tuple[float, float, float, float]
"""Left, top, right, bottom."""


@dataclass(frozen=True)
class Label:
    """Where a pipeline's name stands.

    Attributes:
        x: Where it begins, or ends if `anchor` is `end`.
        y: Its baseline.
        anchor: `start` right of its dot, `end` left of it.
        is_far: Whether a line has to lead from the dot to it.
    """

    x: float
    y: float
    anchor: str
    is_far: bool


def plot(record: Mapping[str, Any], cost: str) -> str:
    """Score against a cost, on a logarithmic axis, as an SVG file, with a line along the front.

    Args:
        record: The content of compare.json.
        cost: The kind of cost. Pipelines that don't count it are left out.
    """
    rows = {
        name: (max(row["costs"][cost], _LEAST), mean_score(row["score"]), row["on_front"][cost])
        for name, row in record["pipelines"].items()
        if row["costs"][cost] is not None and mean_score(row["score"]) is not None
    }
    prices = [price for price, _, _ in rows.values()] or [1.0]
    low, high = min(prices), max(prices)
    top = next(top for top in _TOPS if max((value or 0.0 for _, value, _ in rows.values()), default=1.0) <= top)
    dots = {
        name: (_across(price, low, high), BOTTOM - (value or 0.0) / top * (BOTTOM - TOP))
        for name, (price, value, _) in rows.items()
    }
    return render(
        "inference/comparing/templates/compare.html",
        label=f"{COST_HEADS[cost]} a question",
        edges=(LEFT, RIGHT, TOP, BOTTOM),
        dots=[(name, *dots[name], rows[name][2], label) for name, label in labels(dots).items()],
        front=sorted(dots[name] for name, (_, _, is_on_front) in rows.items() if is_on_front),
        across=[(_across(price, low, high), number(price)) for price in _ticks(low, high)],
        up=[(BOTTOM - share * (BOTTOM - TOP), number(100 * share * top)) for share in (0, 0.2, 0.4, 0.6, 0.8, 1)],
    )


def mean_score(scores: Sequence[Mapping[str, float] | None]) -> float | None:
    """The mean over evaluations, of those that have a score."""
    known = [score["value"] for score in scores if score is not None]
    return sum(known) / len(known) if known else None


def labels(dots: Mapping[str, tuple[float, float]]) -> dict[str, Label]:
    """Where each dot's name stands: on no other name and on no dot, as near to its own as can be.

    Args:
        dots: Each dot's place by its name.
    """
    taken: list[Box] = [(x - _DOT, y - _DOT, x + _DOT, y + _DOT) for x, y in dots.values()]
    placed = {}
    for name, (x, y) in sorted(dots.items(), key=lambda dot: (dot[1][1], dot[1][0])):
        for label in _places(x, y):
            box = _box(label, name)
            if box[2] <= RIGHT + 100 and box[0] >= LEFT and not any(_overlap(box, other) for other in taken):
                placed[name] = label
                taken.append(box)
                break
    return placed


def _places(x: float, y: float) -> Iterator[Label]:
    """Right and left of a dot, then ever farther above and below, within the plot's height as long as there is room."""
    for step in itertools.count():
        for height in dict.fromkeys((y + 4 - step * _LINE / 2, y + 4 + step * _LINE / 2)):
            if TOP - 10 <= height <= BOTTOM + 4 or step > 2 * (BOTTOM - TOP) / _LINE:
                for side, anchor in ((1, "start"), (-1, "end")):
                    yield Label(x + side * (_DOT + 3), height, anchor, step > 1)


def _box(label: Label, name: str) -> Box:
    width = _LETTER * len(name)
    left = label.x if label.anchor == "start" else label.x - width
    return left, label.y - 10, left + width, label.y + 3


def _overlap(one: Box, other: Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def _across(price: float, low: float, high: float) -> float:
    """Where a cost lies between the lowest and the highest, by its logarithm."""
    share = 0.5 if low == high else math.log(price / low) / math.log(high / low)
    return LEFT + 14 + share * (RIGHT - LEFT - 28)


def _ticks(low: float, high: float) -> list[float]:
    """Round costs between the lowest and the highest: 1, 2 and 5 of each power of ten, or the powers alone."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for digits in ((1, 2, 5), (1, 3), (1,)):
        ticks = [digit * 10.0**power for power in powers for digit in digits if low <= digit * 10.0**power <= high]
        if 2 <= len(ticks) <= _MOST_TICKS:
            return ticks
    return list(dict.fromkeys((low, high)))

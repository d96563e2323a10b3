"""Scores of `metrics.json`, looked up and shown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def at(metrics: Mapping[str, Any] | None, *path: str) -> Any:
    """Return the value at the end of a path of nested dictionaries, or None if it was not measured."""
    found: Any = metrics
    for name in path:
        found = (found or {}).get(name)
    return found


def in_per_cent(score: Mapping[str, Any] | None, digits: int = 1) -> str:
    """Return a score in per cent, with its 95 % interval and the number of questions if it has them; a dash if None."""
    if not score or score.get("value") is None:
        return "–"
    value = f"{100 * score['value']:.{digits}f}"
    if "low" not in score:
        return value
    return f"{value} [{100 * score['low']:.{digits}f}, {100 * score['high']:.{digits}f}], n = {score['n']}"

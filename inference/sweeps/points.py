"""Grid points: settings of a pipeline by name, one at a time or in all combinations."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from reflectune.core.config import cross_check, find_problems
from reflectune.inference.config import DatasetSettings, ModelSettings
from reflectune.inference.reading.ranking import FULL, RANKINGS
from reflectune.inference.running.config import SweptPipelines

READ_ONLY = ("ranking",)
"""Settings that re-rank a finished trace, without running a pipeline."""

ELSEWHERE = ("pipeline", "relevance", "entries", *READ_ONLY)
"""Settings that are not fields of a config."""


class GridSettings(ModelSettings, DatasetSettings, SweptPipelines):
    """Settings that grid points start from: models, and the settings of the pipelines that are varied."""

    @cross_check
    def model_problems(self) -> Iterator[str]:
        """Yield the problems of models that a sweep doesn't load."""
        if self.plain_model:
            yield "`plain_model` is read by no pipeline of a sweep; leave it out"
        if self.server:
            yield "`server` is not for a sweep, which keeps keys and values of the models that it loads; leave it out"


START = "start"
"""Name of the point with the config's own values."""


@dataclass(frozen=True)
class Point:
    """A point of a grid.

    Attributes:
        name: Unique name.
        settings: Values that differ from the config: its fields, and `pipeline` (a registered name), `ranking` (of
            Table 5 of mR²AG), `relevance` (False: answer from every passage, as `mr2ag_unjudged`), and `entries`
            (`gold`: the question's own entry in place of retrieved ones).
    """

    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def ranking(self) -> str:
        """Ranking by which the candidates of a finished trace are ranked again; "" for the pipeline's own choice."""
        ranking = str(self.settings.get("ranking", FULL))
        return "" if ranking == FULL else ranking

    @property
    def run_key(self) -> tuple[tuple[str, str], ...]:
        """Key that is equal for points that share one run of a pipeline."""
        return tuple(sorted((key, repr(value)) for key, value in self.settings.items() if key not in READ_ONLY))

    def config(self, base: GridSettings) -> GridSettings:
        """Return the config with this point's settings."""
        changes = {key: value for key, value in self.settings.items() if key not in ELSEWHERE}
        return type(base).model_validate({**base.model_dump(), **changes})


def expand(grid: Mapping[str, Sequence[Any]], start: Mapping[str, Any], *, product: bool) -> list[Point]:
    """Return the points of a grid, each once: the starting point, then in the order of the grid.

    Args:
        grid: Values by setting.
        start: Value of each of these settings while a different one is varied.
        product: Take all combinations; else vary one setting at a time.
    """
    if product:
        combined = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
        named = {label(settings): settings for settings in combined}
    else:
        named = {label({name: value}): {**start, name: value} for name, values in grid.items() for value in values}
    others = (Point(name, settings) for name, settings in named.items() if label(settings) != label(start))
    return [Point(START, start), *others]


def label(settings: Mapping[str, Any]) -> str:
    """Return settings as text: `gamma=0.5 mct=filter`."""
    return " ".join(f"{name}={show(value)}" for name, value in settings.items())


def problems(grid: Mapping[str, Any], config: GridSettings) -> list[str]:
    """Return the problems of a grid: not a list, an unknown setting, a value that the config or a ranking refuses."""
    issues = []
    fields = type(config).model_fields.keys()
    accepted = set(config.problems())
    for name, values in grid.items():
        if not isinstance(values, list) or not values:
            issues.append(f"`grid`: `{name}` should be a list of values, found {values!r}")
        elif name == "ranking":
            issues += [
                f"`grid`: unknown ranking `{v}`; one of {', '.join(RANKINGS)}" for v in values if v not in RANKINGS
            ]
        elif name not in fields | set(ELSEWHERE):
            issues.append(f"`grid`: `{name}` is not a setting of a pipeline")
        elif name in fields:
            found = [find_problems(type(config), {**config.model_dump(), name: value}) for value in values]
            issues += [f"`grid`: {issue}" for of_value in found for issue in of_value if issue not in accepted]
    return issues


def show(value: Any) -> str:
    """Return a value as text: `on`, `off`, `auto`, a number."""
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)

"""Settings of `sweep.py`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from pathlib import Path
from typing import Annotated, Any, Final, Self

from pydantic import model_validator

from reflectune.core.config import cross_check, setting
from reflectune.core.values import InputFile, one_of, output_of
from reflectune.formats.dataset import SplitsKeys
from reflectune.inference.config import ModelRole
from reflectune.inference.pipelines.registry import find_recipe, sweepable
from reflectune.inference.running.config import SweptPipelines, unread_settings
from reflectune.inference.running.opening import OnError
from reflectune.inference.sweeps.points import ELSEWHERE, GridSettings, Point, expand, problems
from reflectune.inference.sweeps.stored import CHOICES
from reflectune.metrics.config import MetricConfig
from reflectune.models.remote.endpoint import ConnectionKeys
from reflectune.retrieval.config import RetrieverConfig

WEIGHTS: Final = ("title_weight", "summary_share", "ranked_scores")
"""Settings of S_ret. All values can be searched with on one index, or one file of ranked entities."""


class SweepConfig(SplitsKeys, MetricConfig, GridSettings):
    """Evaluate a grid of settings, reusing forward passes between its points."""

    pipeline: Annotated[str, one_of(*sweepable())] = setting("mr2ag", "pipeline whose settings are varied")
    grid: dict[str, Any] = setting({}, "a list of values for each setting to vary", hashed=False)  # its points are
    product: bool = setting(
        False, "take all combinations; else vary one setting at a time from this config's values", hashed=False
    )
    traces: InputFile = setting(
        "",
        "recompute the answers of these traces without a model: mr2ag's, or the complete ones of mr2ag_unjudged",
        hashed=False,
    )
    fit: bool = setting(
        False,
        "with `traces`: also fit the exponents of the product, cross-validated over entities",
        hashed=False,
    )
    output: Annotated[str, output_of()] = setting(
        "", "folder for sweep.json, sweep.html and the plots", needed="", hashed=False
    )
    batch_questions: int = setting(8, "questions kept in memory together", ge=1)
    on_error: OnError = setting(
        "stop", "a question with a bad image or no text: stop, or count it as wrong", hashed=False
    )

    @classmethod
    def unread_keys(cls, values: Mapping[str, Any]) -> Set[str]:
        """Return the keys of models that a sweep doesn't load, and those that the pipeline doesn't read."""
        pipeline = str(values.get("pipeline", cls.model_fields["pipeline"].default))
        of_models = {"plain_model", "server", *ConnectionKeys.model_fields}
        return super().unread_keys(values) | of_models | unread_settings(cls, SweptPipelines, [pipeline])

    @model_validator(mode="after")
    def _choose_scheme(self) -> Self:
        """Set the pipeline's own scheme, if none is named."""
        self.scheme = self.scheme or self.pipeline
        return self

    @cross_check
    def grid_problems(self) -> Iterator[str]:
        """Yield the problems of the grid."""
        if self.fit and not self.traces:
            yield "`fit` needs `traces`"
        if self.traces and self.pipeline != "mr2ag":
            yield f"`traces` can be decided again for mr2ag alone, `pipeline` is {self.pipeline}"
        if not self.grid and not self.fit:
            yield "`grid` is empty; give at least one setting with a list of values, e.g. gamma: [0, 0.5, 1]"
        known = self.may_vary()
        idle = [name for name in self.grid if name not in known]
        if idle:
            yield f"`grid`: {', '.join(idle)} can't be varied for {self.pipeline}, only {', '.join(known)}"
        varied = {name: values for name, values in self.grid.items() if name not in idle}
        yield from problems(varied, self.reading())

    @cross_check
    def index_problems(self) -> Iterator[str]:
        """Yield the index's problems. Stored traces need none, also where a file of settings names one."""
        if not self.traces:
            yield from RetrieverConfig.of(self).index_problems()

    @cross_check
    def missing_parts(self) -> Iterator[str]:
        """Yield the models and the index that are missing. Stored traces need none."""
        if self.traces:
            return
        if not self.model:
            yield "`model` is needed"
        if not RetrieverConfig.of(self).finds_entries:
            yield "`index` is needed, or `ranked_entities`"
        if "base_model" in self.roles() and not self.base_model:
            yield "`base_model` is needed: RET is measured against its answers, and it may answer"

    def may_vary(self) -> tuple[str, ...]:
        """Return the settings that change the pipeline's results."""
        return CHOICES if self.traces else (*WEIGHTS, *find_recipe(self.pipeline).varied)

    def roles(self) -> list[ModelRole]:
        """Return the roles of the models that the points need."""
        if self.traces:
            return []
        return ["model", "base_model"] if find_recipe(self.pipeline).base_answers else ["model"]

    def reading(self) -> GridSettings:
        """Return the settings that points start from."""
        return GridSettings.of(self)

    def start(self) -> dict[str, Any]:
        """Return the values of the grid's settings in this config."""
        home = {"relevance": True, "entries": "retrieved", "ranking": "full", "pipeline": self.pipeline}
        return {name: home[name] if name in ELSEWHERE else getattr(self, name) for name in self.grid}

    def points(self) -> list[Point]:
        """Return the grid's points, the starting point first."""
        grid = {
            name: values if name in ELSEWHERE else [getattr(GridSettings(**{name: value}), name) for value in values]
            for name, values in self.grid.items()
        }
        return expand(grid, self.start(), product=self.product)

    def log(self) -> Path:
        """Return the path of the log of finished questions."""
        return Path(self.output, "questions.jsonl")

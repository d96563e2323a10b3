"""The settings that say by which metric answers are scored; the same in every command that scores."""

from __future__ import annotations

from pathlib import Path

from reflectune.core.config import Settings, setting
from reflectune.core.errors import UserError
from reflectune.core.types import METRICS, Metric
from reflectune.formats.dataset import MANIFEST, Dataset
from reflectune.metrics.judging.bem import Bem, load_bem
from reflectune.metrics.scoring.registry import find_metric_name, metric_problems
from reflectune.models.names import BemName


class MetricConfig(Settings):
    """By which metric answers are scored."""

    metric: str = setting(
        "",
        "what an answer is worth; the data set's own (dataset.json) if unset. evqa needs `bem`; evqa_exact "
        "is the part of it without a model. One of " + ", ".join(METRICS),
    )
    bem: BemName = setting("", "folder or hub id of a converted BEM, for `metric: evqa`", hashed=False)

    def scored_by(self, dataset: str) -> Metric:
        """The metric: the config's, else the one that the data set in this folder says; UserError if neither does."""
        if self.metric:
            return find_metric_name(self.metric)
        return Dataset(Path(dataset)).metric

    def metric_issues(self, dataset: str) -> list[str]:
        """Return the problems of the metric for a data set. A missing data set is not one of them."""
        if not self.metric and not Path(dataset or "", MANIFEST).is_file():
            return []
        try:
            return metric_problems(self.scored_by(dataset), self.bem)
        except UserError as error:
            return [str(error)]

    def open_bem(self, device: str) -> Bem | None:
        """The answer-equivalence model, if the config names one; on `auto` an accelerator if there is one."""
        if not self.bem:
            return None
        from reflectune.core.devices import find_device  # torch is slow to import: after the config is right

        return load_bem(self.bem, device=str(find_device(device)))

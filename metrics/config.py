"""Settings of the metric, the same in every command that scores answers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from reflectune.core.config import Settings, cross_check, setting
from reflectune.core.errors import UserError
from reflectune.core.types import METRICS, Metric
from reflectune.formats.dataset import MANIFEST, Dataset, DatasetKey
from reflectune.metrics.judging.bem import Bem, load_bem
from reflectune.metrics.scoring.registry import find_metric_name, metric_problems
from reflectune.models.names import BemName


class MetricKeys(Settings):
    """Settings of the metric."""

    metric: str = setting(
        "",
        "metric of an answer; the data set's own (dataset.json) if unset. evqa needs `bem`; evqa_exact is its "
        "part without a model. One of " + ", ".join(METRICS),
    )
    bem: BemName = setting("", "folder or hub id of a converted BEM, for `metric: evqa`", hashed=False)

    def scored_by(self, dataset: str) -> Metric:
        """Return the config's metric, or the data set's own if it is unset.

        Raises:
            UserError: Neither names a metric.
        """
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
        """Load the answer-equivalence model on a device; None if the config names none."""
        if not self.bem:
            return None
        from reflectune.core.devices import find_device  # torch is slow to import: after the config is right

        return load_bem(self.bem, device=str(find_device(device)))


class MetricConfig(MetricKeys, DatasetKey):
    """Settings of the metric that scores answers to a data set's questions."""

    @cross_check
    def metric_problems(self) -> Iterator[str]:
        """Yield the problems of the metric."""
        yield from self.metric_issues(self.dataset)

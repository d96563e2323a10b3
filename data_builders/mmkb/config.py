"""Settings of `derive_labels`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from reflectune.core.config import cross_check, setting
from reflectune.core.values import Device, InputFile, output_of
from reflectune.data_builders.mmkb.labels import LabelSettings
from reflectune.metrics.config import MetricKeys
from reflectune.metrics.scoring.registry import MetricChoice, metric_problems


class DeriveConfig(MetricKeys, LabelSettings):
    """Derive MMKB-RAG's training data from probes. No model is needed."""

    probes: str = setting("", "folder of finished probes", needed="", hashed=False)  # their content is
    dataset: str = setting("", "data set folder that was probed", needed="", hashed=False)
    output: Annotated[str, output_of("reflection.json")] = setting(
        "", "folder for the reflection data", needed="", hashed=False
    )
    metric: MetricChoice = setting("", "score the answers again (evqa needs `bem`); the probes' own scores if unset")
    device: Device = setting("cpu", "device of BEM", hashed=False)
    rel_scores: InputFile = setting(
        "",
        "Parquet or JSONL of question_id, passage_id, score: trained [Rel] that orders MCT's reply",
        hashed=False,  # its content is
    )

    @cross_check
    def input_problems(self) -> Iterator[str]:
        """Yield the problems of the folders that are read."""
        for name, marker, maker in (("probes", "probes.json", "probe"), ("dataset", "dataset.json", "convert")):
            folder = getattr(self, name)
            if folder and not Path(folder, marker).is_file():
                yield f"`{name}`: {folder} has no {marker}; give a folder that {maker} has finished"

    @cross_check
    def metric_problems(self) -> Iterator[str]:
        """Yield the problems of the metric."""
        if self.metric:
            yield from metric_problems(self.metric, self.bem)
        elif self.bem:
            yield "`bem` is used by `metric: evqa` only: set it, or leave `bem` out"

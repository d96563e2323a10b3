"""Settings of `derive_labels`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from reflectune.core.config import cross_check, setting
from reflectune.core.secrets import shown_options
from reflectune.core.values import Device, InputFile, output_of
from reflectune.data_builders.mmkb.labels import LabelSettings
from reflectune.metrics.scoring.registry import MetricChoice, metric_problems
from reflectune.models.names import BemName
from reflectune.models.remote.endpoint import RemoteConfig


class DeriveConfig(LabelSettings, RemoteConfig):
    """Derive MMKB-RAG's training data from probes. No model is needed."""

    probes: str = setting("", "folder of finished probes", needed="")
    dataset: str = setting("", "data set folder that was probed", needed="")
    output: Annotated[str, output_of("reflection.json")] = setting("", "folder for the reflection data", needed="")
    metric: Literal[MetricChoice, "judge"] = setting(
        "", "score the answers again: evqa needs `bem`, judge a remote model; the probes' own scores if unset"
    )
    bem: BemName = setting("", "folder or hub id of a converted BEM, for `metric: evqa`")
    device: Device = setting("cpu", "device of BEM")
    judge: Literal["pmsr", "mrag"] = setting(
        "pmsr", "`metric: judge`: protocol of the judge; the model is `llm_model` at `llm_url`"
    )
    rel_scores: InputFile = setting(
        "", "Parquet or JSONL of question_id, passage_id, score: trained [Rel] that orders MCT's reply"
    )
    proofread: int = setting(50, "random questions on the page for proof-reading; 0: no page", ge=0)

    @cross_check
    def input_problems(self) -> Iterator[str]:
        """Yield the problems of the folders that are read."""
        for name, marker, maker in (("probes", "probes.json", "probe"), ("dataset", "dataset.json", "convert")):
            folder = getattr(self, name)
            if folder and not Path(folder, marker).is_file():
                yield f"`{name}`: {folder} has no {marker}; give a folder that {maker} has finished"

    @cross_check
    def metric_problems(self) -> Iterator[str]:
        """Yield the problems of the metric or of the judge."""
        if self.metric == "judge":
            yield from self.llm_problems()
            if "temperature" in self.llm_options:
                yield "`llm_options` can't set the temperature of a judge: it is 0"
        elif self.metric:
            yield from metric_problems(self.metric, self.bem)
        elif self.bem:
            yield "`bem` is used by `metric: evqa` only: set it, or leave `bem` out"

    def decisive(self) -> dict[str, Any]:
        """Return the settings that determine the labels. Probes, [Rel] scores and BEM are hashed separately."""
        settings = {**LabelSettings.of(self).model_dump(), "metric": self.metric}
        if self.metric == "judge":
            options = shown_options(self.llm_options)
            settings |= {"judge": self.judge, "llm_model": self.llm_model, "llm_options": options}
        return settings

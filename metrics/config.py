"""Settings of the metric, the same in every command that scores answers, and of `score`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from reflectune.core.config import Settings, cross_check, setting
from reflectune.core.errors import UserError
from reflectune.core.types import Metric
from reflectune.core.values import Device, InputFile, OutputFile, Seed, SplitName
from reflectune.formats.dataset import MANIFEST, Dataset, DatasetKey, split_issues
from reflectune.metrics.judging.bem import Bem, load_bem
from reflectune.metrics.scoring.registry import MetricChoice, metric_problems
from reflectune.models.names import BemName
from reflectune.models.remote.endpoint import RemoteConfig


class MetricKeys(Settings):
    """Settings of the metric."""

    metric: MetricChoice = setting(
        "", "if unset, the data set's own (dataset.json); evqa needs `bem`; evqa_exact is its part without a model"
    )
    bem: BemName = setting("", "folder or hub id of a converted BEM, for `metric: evqa`", hashed=False)

    def scored_by(self, dataset: str) -> Metric:
        """Return the config's metric, or the data set's own if it is unset; UserError if neither names one."""
        return self.metric or Dataset(Path(dataset)).metric

    def metric_issues(self, dataset: str) -> list[str]:
        """Return the problems of the metric for a data set; none if the data set is missing."""
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


class ScoreConfig(MetricKeys, RemoteConfig):
    """Settings of scoring."""

    predictions: str = setting("", "prediction file, or ReflectiVA's folder of split_*.json", needed="")
    dataset: str = setting("", "data set folder", needed="")
    against: str = setting("", "a second prediction file, compared by a paired test")
    mode: Literal["official", "strict"] = setting(
        "official", "strict: a missing answer is wrong, a repeated one an error"
    )
    splits: list[SplitName] = setting([], "splits to score; if none, those with predictions")
    device: Device = setting("cpu", "device of BEM")
    judge: Literal["", "pmsr", "mrag"] = setting(
        "", "also ask a judge, by this paper's protocol; needs `llm_model` and `llm_url`"
    )
    seed: Seed = setting(0, "seed of the intervals and the paired test")
    output: OutputFile = setting("", "JSON file to write the scores to")
    submission: OutputFile = setting(
        "", "file to write for the official program of InfoSeek, E-VQA or VQA; scores nothing"
    )
    official: InputFile = setting(
        "",
        "submission: the official file of questions, for rows that the data set lacks: InfoSeek's annotations, E-VQA's "
        "CSV, or VQA's questions",
    )
    fill_missing: bool = setting(False, "submission: give a question without an answer an empty one")
    dry_run: bool = setting(False, "describe the scoring, and stop")

    @cross_check
    def input_problems(self) -> Iterator[str]:
        """Yield the problems of files that are read."""
        for key in ("predictions", "dataset", "against"):
            if (path := getattr(self, key)) and not Path(path).exists():
                yield f"`{key}`: not found: {path}"

    @cross_check
    def submission_problems(self) -> Iterator[str]:
        """Yield the problems of keys that have no effect: a submission scores nothing, and some keys need one."""
        for key in ("against", "judge", "output") if self.submission else ("official", "fill_missing"):
            if getattr(self, key):
                reason = "`submission` scores nothing" if self.submission else "it is for a `submission`"
                yield f"`{key}` has no effect: {reason}; leave it out"

    @cross_check
    def judge_problems(self) -> Iterator[str]:
        """Yield the problems of the judge's keys, if one is asked."""
        if not self.judge:
            return
        yield from self.llm_problems()
        if not self.judge_cache:
            yield "`output` or `llm_cache` is needed: a place for the judge's replies"
        if "temperature" in self.llm_options:
            yield "`llm_options` can't set the temperature of a judge: it is 0"

    @cross_check
    def dataset_problems(self) -> list[str]:
        """Return the problems of the data set and its splits; none if the folder is missing (`input_problems`)."""
        if self.dataset and Path(self.dataset).exists() and not Path(self.dataset, MANIFEST).is_file():
            return [f"`dataset`: {self.dataset} has no {MANIFEST}; build_world and convert write one"]
        return split_issues("splits", self.dataset, self.splits)

    @cross_check
    def metric_problems(self) -> list[str]:
        """Return the problems of the metric; a submission needs none."""
        return [] if self.submission else self.metric_issues(self.dataset)

    @property
    def judge_cache(self) -> str:
        """The cache of the judge's replies; "" if neither key names a place."""
        return self.llm_cache or (f"{self.output}.replies.jsonl" if self.output else "")

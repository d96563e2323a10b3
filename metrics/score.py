"""Score a prediction file: `reflectune score --predictions P --dataset D [--metric …] [--against Q]`.

P is a file of InfoSeek's, EchoSight's, ReflectiVA's or PMSR's layout, or our traces; D a data set folder.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Literal

from reflectune.core.command import command
from reflectune.core.config import cross_check, setting
from reflectune.core.durable import write_json
from reflectune.core.errors import UserError
from reflectune.core.types import Metric
from reflectune.core.values import Device, InputFile, OutputFile, Seed, SplitName
from reflectune.metrics.scoring.registry import MetricChoice, metric_problems
from reflectune.models.names import BemName
from reflectune.models.remote.endpoint import RemoteConfig


class ScoreConfig(RemoteConfig):
    """Settings of scoring."""

    predictions: str = setting("", "prediction file, or ReflectiVA's folder of split_*.json", needed="")
    dataset: str = setting("", "data set folder", needed="")
    against: str = setting("", "a second prediction file, compared by a paired test")
    metric: MetricChoice = setting(
        "", "the data set's own if unset; evqa needs `bem`, evqa_exact is its part without a model"
    )
    mode: Literal["official", "strict"] = setting(
        "official", "strict: a missing answer is wrong, a doubled one an error"
    )
    splits: list[SplitName] = setting([], "splits to score; if none, those with predictions")
    bem: BemName = setting("", "folder or hub id of a converted BEM, for `evqa`")
    device: Device = setting("cpu", "device of BEM")
    judge: Literal["", "pmsr", "mrag"] = setting(
        "", "also ask a judge by this paper's protocol; needs `llm_model` and `llm_url`"
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
        """Return the problems of the data set and its splits. A missing folder is not one of them."""
        from reflectune.formats.dataset import MANIFEST, split_issues  # slow to import, and above this floor

        if self.dataset and Path(self.dataset).exists() and not Path(self.dataset, MANIFEST).is_file():
            return [f"`dataset`: {self.dataset} has no {MANIFEST}; build_world and convert write one"]
        return split_issues("splits", self.dataset, self.splits)

    @cross_check
    def metric_problems(self) -> list[str]:
        """Return the problem of the metric or of BEM. A missing data set is not one of them."""
        if not self.metric and not Path(self.dataset or "", "dataset.json").is_file():
            return []
        try:
            return [] if self.submission else metric_problems(self.scored_by(), self.bem)
        except UserError as error:
            return [str(error)]

    def scored_by(self) -> Metric:
        """Return the config's metric, or the data set's own."""
        from reflectune.formats.dataset import Dataset  # slow to import, and above this floor

        return self.metric or Dataset(Path(self.dataset)).metric

    @property
    def judge_cache(self) -> str:
        """The cache of the judge's replies; "" if neither key names a place."""
        return self.llm_cache or (f"{self.output}.replies.jsonl" if self.output else "")


@command(ScoreConfig, writes="output")
def score(config: ScoreConfig) -> None:
    """Score a prediction file, or write it for an official program."""
    if config.dry_run:
        purpose = (
            f"write {config.submission}" if config.submission else f"score by {config.scored_by()} ({config.mode})"
        )
        print(f"would {purpose}: {config.predictions} on {config.dataset}")
        return
    from reflectune.formats import dataset  # slow to import, so only once the config is known to be right

    splits = config.splits or [split for split in dataset.splits(config.dataset) if split != "train"]
    questions = [question for split in splits for question in dataset.read_questions(config.dataset, split)]
    if config.submission:
        from reflectune.metrics.scoring.submission import layout_for, write_submission

        official = Path(config.official) if config.official else None
        message = write_submission(
            Path(config.submission),
            layout_for(config.scored_by()),
            Path(config.predictions),
            questions,
            official,
            touched=not config.splits,
            fill=config.fill_missing,
        )
        print(message)
        return
    from reflectune.core.devices import find_device
    from reflectune.metrics.judging.bem import load_bem
    from reflectune.metrics.judging.judges import PROTOCOLS, Judging
    from reflectune.metrics.reporting.score_report import lines, score_files
    from reflectune.models.remote.client import RemoteModel

    bem = load_bem(config.bem, device=str(find_device(config.device))) if config.bem else None
    files = [Path(path) for path in (config.predictions, config.against) if path]
    with ExitStack() as stack:
        judging = None
        if config.judge:
            model = stack.enter_context(RemoteModel(config.endpoint(), config.judge_cache))
            judging = Judging(PROTOCOLS[config.judge], config.llm_model, partial(model.texts, desc="judge"))
        scoring = (config.scored_by(), config.mode, bem, judging)
        report = score_files(files, questions, *scoring, touched=not config.splits, seed=config.seed)
    report["dataset"] = {"folder": config.dataset, "fingerprint": dataset.Dataset(Path(config.dataset)).fingerprint}
    if config.output:
        write_json(config.output, report)
    print("\n".join(lines(report)))

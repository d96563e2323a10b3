"""Score a prediction file: `python -m reflectune.metrics.score --predictions P --dataset D [--metric …] [--against Q]`.

P is a file of InfoSeek's, EchoSight's, ReflectiVA's or PMSR's layout, or our traces; D a data set folder.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from reflectune.core import checks
from reflectune.core.config import parse_config, setting
from reflectune.core.durable import write_json
from reflectune.core.errors import UserError, entry_point
from reflectune.core.outputs import hold
from reflectune.metrics.scoring.registry import Metric, MetricChoice, metric_problems
from reflectune.models.names import bem_name
from reflectune.models.remote.endpoint import RemoteConfig


@dataclass
class ScoreConfig(RemoteConfig):
    """What is scored, against what, and how."""

    predictions: str = setting("", "prediction file, or ReflectiVA's folder of split_*.json")
    dataset: str = setting("", "data set folder")
    against: str = setting("", "a second prediction file, compared by a paired test")
    repairs: str = setting(
        "", "repaired answers: JSONL, or ARA's _fixed.csv; a table sets them beside the original ones"
    )
    repaired_predictions: str = setting("", "predictions for the repaired questions, with `repairs`")
    metric: MetricChoice = setting(
        "", "the data set's own if unset; evqa needs `bem`, evqa_exact is what of it needs no model"
    )
    mode: Literal["official", "strict"] = setting(
        "official", "strict: a missing answer is wrong, a doubled one an error"
    )
    splits: list[str] = setting([], "splits to score; if none, those with predictions", check=checks.split_name)
    bem: str = setting("", "folder or hub id of a converted BEM, for `evqa`", check=bem_name)
    device: str = setting("cpu", "where BEM computes", check=checks.device)
    judge: Literal["", "pmsr", "mrag"] = setting(
        "", "also ask a judge by this paper's protocol; needs `llm_model` and `llm_url`"
    )
    seed: int = setting(0, "seed of the intervals and the paired test", low=0, high=checks.MOST_SEED)
    output: str = setting("", "JSON file to write the scores to", check=checks.output_file)
    dry_run: bool = setting(False, "say what would be scored, and stop")

    def problems(self) -> list[str]:
        """What is wrong with the values."""
        needed = {"predictions": self.predictions, "dataset": self.dataset}
        issues = [f"`{key}` is needed" for key, value in needed.items() if not value]
        more = {key: getattr(self, key) for key in ("against", "repairs", "repaired_predictions")}
        paths = {key: path for key, path in {**needed, **more}.items() if path}
        issues += [f"`{key}`: not found: {path}" for key, path in paths.items() if not Path(path).exists()]
        if self.repaired_predictions and not self.repairs:
            issues.append("`repairs` is needed by `repaired_predictions`: the file that says what was repaired")
        issues += self.dataset_issues()
        issues += self.metric_issues()
        issues += self.llm_problems() if self.judge else []
        if self.judge and not self.judge_cache:
            issues.append("`output` or `llm_cache` is needed: it says where the judge's replies are kept")
        if self.judge and "temperature" in self.llm_options:
            issues.append("`llm_options` can't set the temperature of a judge: it is 0")
        return issues

    def dataset_issues(self) -> list[str]:
        """What is wrong with the data set, a folder that is not there apart."""
        from reflectune.formats.dataset import MANIFEST, split_issues  # slow to import, and above this floor

        if self.dataset and Path(self.dataset).exists() and not Path(self.dataset, MANIFEST).is_file():
            return [f"`dataset`: {self.dataset} has no {MANIFEST}; build_world and convert write one"]
        return split_issues("splits", self.dataset, self.splits)

    def metric_issues(self) -> list[str]:
        """What is wrong with the metric, or lacks for it; a missing data set is said elsewhere."""
        if not self.metric and not Path(self.dataset or "", "dataset.json").is_file():
            return []
        try:
            return metric_problems(self.scored_by(), self.bem)
        except UserError as error:
            return [str(error)]

    def scored_by(self) -> Metric:
        """The metric: the config's, else the data set's own."""
        from reflectune.formats.dataset import Dataset  # slow to import, and above this floor

        return self.metric or Dataset(Path(self.dataset)).metric

    @property
    def judge_cache(self) -> str:
        """The file that keeps the judge's replies; "" if nothing says where."""
        return self.llm_cache or (f"{self.output}.replies.jsonl" if self.output else "")


@entry_point
def main() -> None:
    """Parse the config, score, print, and write the JSON file."""
    (config,) = parse_config(ScoreConfig)
    hold(config.output, unless=config.dry_run)
    if config.dry_run:
        print(f"would score {config.predictions} by {config.scored_by()} ({config.mode}) on {config.dataset}")
        return
    from reflectune.core.devices import find_device  # slow to import, as those below: after the config is right
    from reflectune.formats import dataset
    from reflectune.metrics.judging.bem import load_bem
    from reflectune.metrics.judging.judges import PROTOCOLS, Judging
    from reflectune.metrics.reporting.score_report import lines, score_files
    from reflectune.models.remote.client import RemoteModel

    splits = config.splits or [split for split in dataset.splits(config.dataset) if split != "train"]
    questions = [question for split in splits for question in dataset.read_questions(config.dataset, split)]
    bem = load_bem(config.bem, device=str(find_device(config.device))) if config.bem else None
    files = [Path(path) for path in (config.predictions, config.against) if path]
    with ExitStack() as stack:
        judging = None
        if config.judge:
            model = stack.enter_context(RemoteModel(config.endpoint(), config.judge_cache))
            judging = Judging(PROTOCOLS[config.judge], config.llm_model, partial(model.texts, what="judge"))
        settings = (config.scored_by(), config.mode, bem, judging)
        repairs, again = (Path(path) if path else None for path in (config.repairs, config.repaired_predictions))
        limits = {"touched": not config.splits, "seed": config.seed}
        report = score_files(files, questions, *settings, **limits, repairs=repairs, asked_again=again)
    report["dataset"] = {"folder": config.dataset, "fingerprint": dataset.Dataset(Path(config.dataset)).fingerprint}
    if config.output:
        write_json(config.output, report)
    print("\n".join(lines(report)))


if __name__ == "__main__":
    main()

"""Write an official program's file: `python -m reflectune.metrics.submission --predictions P --dataset D --output O`.

P is an evaluation's traces or a prediction file; `--check FILE` checks a file that is there. InfoSeek's, E-VQA's and
VQA's programs are known.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from reflectune.core.command import command
from reflectune.core.config import Settings, cross_check, setting
from reflectune.core.errors import UserError
from reflectune.core.values import InputFile, OutputFile, SplitName


class SubmissionConfig(Settings):
    """Whose answers are handed in, to which program."""

    predictions: str = setting("", "traces of an evaluation, or a prediction file that `metrics.score` reads")
    check: InputFile = setting("", "a file to check, in place of writing one")
    dataset: str = setting("", "data set folder", needed="")
    splits: list[SplitName] = setting([], "splits to cover; if none, those with answers")
    layout: Literal["", "infoseek", "evqa", "vqa"] = setting(
        "", "whose program reads it; by the data set's metric if unset"
    )
    official: InputFile = setting(
        "",
        "the official file of questions, to cover rows that the data set lacks: InfoSeek's annotations, E-VQA's CSV, "
        "or VQA's questions",
    )
    fill_missing: bool = setting(False, "give a question without an answer an empty one")
    output: OutputFile = setting("", "file to write")
    dry_run: bool = setting(False, "say what would be written or checked, and stop")

    @property
    def writes_nothing(self) -> bool:
        """True if a file is checked, or with `--dry_run`."""
        return self.dry_run or bool(self.check)

    @cross_check
    def task_problems(self) -> Iterator[str]:
        """Yield a problem if it is not clear whether to write or to check."""
        if bool(self.predictions) == bool(self.check):
            yield "give either `predictions`, to write a file, or `check`, to check one"
        if self.predictions and not self.output:
            yield "`output` is needed: the file to write"

    @cross_check
    def input_problems(self) -> Iterator[str]:
        """Yield a problem if the predictions are missing."""
        if self.predictions and not Path(self.predictions).exists():
            yield f"`predictions`: not found: {self.predictions}"

    @cross_check
    def dataset_problems(self) -> Iterator[str]:
        """Yield the problems of the data set and of the splits."""
        from reflectune.formats.dataset import MANIFEST, split_issues  # slow to import

        if self.dataset and not Path(self.dataset, MANIFEST).is_file():
            yield f"`dataset`: {self.dataset} has no {MANIFEST}; build_world and convert write one"
        yield from split_issues("splits", self.dataset, self.splits)


@command(SubmissionConfig, writes="output")
def submission(config: SubmissionConfig) -> None:
    """Write an official program's file of answers."""
    from reflectune.core.durable import write_atomically  # slow to import, as those below: after the config is right
    from reflectune.formats import dataset
    from reflectune.metrics.scoring.submission_file import check, official_ids
    from reflectune.metrics.scoring.submission_report import file_content, layout_for, lines

    folder = dataset.Dataset(Path(config.dataset))
    layout = config.layout or layout_for(folder.metric)
    if config.dry_run:
        print(f"would check {config.check} ({layout})" if config.check else f"would write {config.output} ({layout})")
        return
    splits = config.splits or [split for split in dataset.splits(config.dataset) if split != "train"]
    questions = [question for split in splits for question in folder.stream(split)]
    official = Path(config.official) if config.official else None
    path = Path(config.check or config.output)
    if config.predictions:
        settings = (layout, Path(config.predictions), questions, official)
        content, answers = file_content(*settings, touched=not config.splits, fill=config.fill_missing)
        write_atomically(path, content)
        questions = list(answers.questions)
        told = f"{len(answers.by_id)} answers of {config.predictions} to {', '.join(answers.splits)}"
        print(told + (f"; left out: {answers.unknown} to no question of these" if answers.unknown else ""))
    expected = official_ids(layout, official) if official is not None else None
    defects = check(path, layout, questions, expected, touched=not config.splits)
    print("\n".join(lines(path, layout, questions, defects)))
    if any(defect.is_unfit for defect in defects):
        raise UserError(f"{path} is not fit to be handed in to {layout}'s program: see above")


if __name__ == "__main__":
    submission.main()

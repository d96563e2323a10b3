"""Keep an agent's good trajectories as SFT data: `python -m reflectune.examples.lessons.keep_trajectories --config …`.

A teacher, local or served, answers the training questions with `evaluate` and `pipelines: [promsa]`. For more samples,
evaluate again with a different `seed` in `llm_options`. This command chooses the trajectories with a right answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from reflectune.core.command import command
from reflectune.core.config import cross_check, setting
from reflectune.core.errors import UserError
from reflectune.core.values import Seed, SplitName, output_of
from reflectune.formats.dataset import Dataset, SplitKey, split_issues
from reflectune.inference.config import DatasetSettings
from reflectune.inference.pipelines.registry import find_recipe
from reflectune.metrics.config import MetricConfig
from reflectune.train.answer_rewards.agent_config import PromsaKeys

if TYPE_CHECKING:  # slow to import
    from reflectune.examples.lessons.trajectories import Trajectory


class TrajectoriesConfig(SplitKey, MetricConfig, DatasetSettings, PromsaKeys):
    """Keep right trajectories of the pipeline promsa as training data of scheme plain, at most one a question."""

    evaluations: list[str] = setting([], "folders that evaluate wrote, with traces of promsa")
    output: Annotated[str, output_of("reflection.json")] = setting("", "folder for the data", needed="")
    max_calls: int = setting(6, "maximum number of tool calls of a trajectory", ge=0)
    held_out: list[SplitName] = setting(
        ["val_unseen_question", "val_unseen_entity"], "splits of `dataset` whose questions are never trained on"
    )
    renamed: int = setting(
        0, "times each is kept, with titles exchanged for others of the same last word; 0: as it is", ge=0
    )
    seed: Seed = setting(0, "seed of sampling")

    @cross_check
    def trajectory_problems(self) -> Iterator[str]:
        """Yield the problems of the evaluations and of the held-out splits."""
        if not self.evaluations:
            yield "`evaluations` is empty; name at least one folder that evaluate wrote"
        if self.split in self.held_out:
            yield f"`held_out` has `{self.split}`, which is the split to train on"
        yield from split_issues("held_out", self.dataset, self.held_out)


@command(TrajectoriesConfig, writes="output")
def keep_trajectories(config: TrajectoriesConfig) -> None:
    """Keep an agent's good trajectories as training data."""
    # slow to import: after the config is right
    from reflectune.examples.lessons.trajectories import also_held_out, choose
    from reflectune.inference.trace_files.reading import read_traces, trace_files
    from reflectune.metrics.scoring.registry import find_metric

    dataset, split = Dataset(Path(config.dataset)), config.split
    files = [trace_files(Path(folder, "traces")).get("promsa") for folder in config.evaluations]
    if without := [folder for folder, path in zip(config.evaluations, files, strict=True) if path is None]:
        raise UserError(
            f"`evaluations`: {without[0]} has no traces of promsa; run teach_agent, or evaluate with promsa"
        )
    questions = {question.id: question for question in dataset.questions(split)}
    chosen = choose(
        (trace for path in files if path for trace in read_traces(path)),
        questions,
        dataset.image_roots,
        find_recipe("promsa").settings_of(config),
        find_metric(config.scored_by(config.dataset), config.open_bem("cpu")),
        config.max_calls,
    )
    asked = [trajectory.question for trajectory in chosen.kept.values()]
    leaked = also_held_out(asked, dataset, config.held_out)
    for name in leaked:
        del chosen.kept[name]
    chosen.left_out.update(["question held out"] * len(leaked))
    numbers = {**chosen.statistics(), "renamed": config.renamed, "also_evaluated": leaked}
    print(
        f"{numbers['traces']:,} trajectories, {numbers['examples']:,} kept, by calls {numbers['by_calls']}; "
        f"{len(leaked):,} questions of {split} are also in {', '.join(config.held_out)} and are left out"
    )
    print("\n".join(f"  left out: {count:,} {reason}" for reason, count in numbers["left_out"].items()))
    if not config.dry_run:
        _write(config, dataset, [*chosen.kept.values()], numbers)


def _write(
    config: TrajectoriesConfig, dataset: Dataset, trajectories: Sequence[Trajectory], numbers: Mapping[str, Any]
) -> None:
    """Write trajectories as reflection data, with their statistics and a page to proof-read."""
    from reflectune.core.hashing import file_fingerprint
    from reflectune.data_builders.annotators.proofreading import PAGE_EXAMPLES, write_page
    from reflectune.examples.lessons.renaming import TitleExchange, renamed
    from reflectune.examples.lessons.trajectories import page_article
    from reflectune.formats.reflection_data import (
        Manifest,
        add_split,
        add_statistics,
        earlier_manifest,
        write_examples,
    )
    from reflectune.models.schemes.examples import PromptedExample

    split, output = config.split, Path(config.output)
    folders = tuple(str(Path(root).resolve()) for root in dataset.image_roots)
    manifest = Manifest("plain", dataset.root, {}, folders)
    earlier_manifest(output, manifest.scheme, manifest.image_root)  # refuses a folder of other data
    output.mkdir(parents=True, exist_ok=True)
    examples, target = [trajectory.example() for trajectory in trajectories], output / f"{split}.parquet"
    if config.renamed:
        exchange = TitleExchange(entry.title for entry in dataset.knowledge)
        examples = [copy for example in examples for copy in renamed(example, config.renamed, exchange, config.seed)]
    write_examples(target, examples, PromptedExample)
    add_split(output, split, manifest, file_fingerprint(target))
    add_statistics(output, split, numbers)
    page, title = output / f"proofread_{split}.html", f"trajectories of {split} of {dataset.root.name}"
    write_page(page, trajectories, page_article, dataset.image_roots, title, count=PAGE_EXAMPLES, seed=config.seed)


if __name__ == "__main__":
    keep_trajectories.main()

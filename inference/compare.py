"""Compare finished evaluations: `reflectune compare --evaluations DIR … --output DIR`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from reflectune.core.command import command
from reflectune.core.config import Settings, cross_check, setting
from reflectune.core.values import output_of


class CompareConfig(Settings):
    """Compare finished evaluations of several data sets, models or seeds in one table of scores and costs."""

    evaluations: list[str] = setting(
        [], "folders that `evaluate` wrote; with `against`, also `sweep`", needed="folders that `evaluate` wrote"
    )
    output: Annotated[str, output_of()] = setting(
        "", "folder for compare.md, compare.svg and compare.json", needed="a folder for compare.md and compare.svg"
    )
    seeds: bool = setting(
        False, "the evaluations differ only by the seed of training: add scores and leads over seeds and entities"
    )
    against: str = setting(
        "",
        "pipeline to compare all others with; the evaluations must have the same questions: `mr2ag`, or "
        "`mr2ag (FOLDER)` if several ran it; with `seeds`, the best baseline if unset",
    )
    dry_run: bool = setting(False, "say what would be done, and stop")

    @cross_check
    def evaluation_problems(self) -> list[str]:
        """Return a sentence for each missing file of an evaluation."""
        problems = []
        for name in self.evaluations:
            required = [] if self.is_fit(name) else ["metrics.json"]
            if self.seeds or self.is_joined or len(self.evaluations) == 2:
                required.append("scored.json")
            missing = [file for file in required if not Path(name, file).is_file()]
            problems += [f"`evaluations`: {name} has no {file}; is its evaluation finished?" for file in missing]
        if self.evaluations and all(map(self.is_fit, self.evaluations)):
            problems.append("`evaluations`: give at least one that `evaluate` wrote")
        return problems

    @property
    def is_joined(self) -> bool:
        """True if all evaluations are treated as one, whose pipelines are compared with `against`."""
        return bool(self.against) and not self.seeds

    def is_fit(self, folder: str) -> bool:
        """Return True if a folder was written by `sweep` and its fitted decisions are compared."""
        return self.is_joined and Path(folder, "sweep.json").is_file()


@command(CompareConfig, writes="output")
def compare(config: CompareConfig) -> None:
    """Compare finished evaluations in one table of scores and costs."""
    from reflectune.core.durable import write_atomically, write_json  # slow to import: after the config is right
    from reflectune.inference.report.comparison import compared, flips, read_metrics, with_folder_names
    from reflectune.inference.report.comparison_page import page, plot
    from reflectune.inference.report.drawing import can_draw
    from reflectune.inference.scoring.evaluation import baselines
    from reflectune.inference.scoring.seeds import RECORD, joined, parts_over_seeds

    if config.dry_run:
        print(f"compare {', '.join(config.evaluations)} in {config.output}: compare.md, compare.svg, compare.json")
        return
    metrics = read_metrics([name for name in config.evaluations if not config.is_fit(name)])
    record = compared(with_folder_names(metrics) if config.is_joined else metrics)
    if config.seeds:
        record["leads"] = parts_over_seeds(read_metrics(config.evaluations, RECORD), config.against, baselines())
    elif config.is_joined:
        scored = joined(read_metrics(config.evaluations, RECORD))
        record["leads"] = parts_over_seeds({"joined": scored}, config.against)
    elif len(record["evaluations"]) == 2:
        record["flips"] = flips(*read_metrics(config.evaluations, RECORD).values())
    write_json(Path(config.output, "compare.json"), record)
    if can_draw():
        write_atomically(Path(config.output, "compare.svg"), plot(record))
    text = page(record)
    write_atomically(Path(config.output, "compare.md"), text)
    print(text)


if __name__ == "__main__":
    compare.main()

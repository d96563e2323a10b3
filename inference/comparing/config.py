"""Settings of `compare.py`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from reflectune.core.config import Settings, cross_check, setting
from reflectune.core.values import one_of, output_of
from reflectune.inference.scoring.trajectories import COSTS


class CompareConfig(Settings):
    """Compare finished evaluations of several data sets, models or seeds in one table of scores and costs."""

    evaluations: list[str] = setting([], "folders that `evaluate` wrote", needed="folders that `evaluate` wrote")
    output: Annotated[str, output_of()] = setting(
        "",
        "folder for compare.md, compare.svg and compare.json",
        needed="a folder for compare.md and compare.svg",
    )
    cost: Annotated[str, one_of(*COSTS)] = setting("read", "the horizontal axis of the plot")
    dry_run: bool = setting(False, "say what would be done, and stop")

    @cross_check
    def evaluation_problems(self) -> list[str]:
        """Return the evaluations that are not finished, one sentence each."""
        return [
            f"`evaluations`: {name} has no metrics.json; is its evaluation finished?"
            for name in self.evaluations
            if not Path(name, "metrics.json").is_file()
        ]

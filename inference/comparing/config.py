"""Settings of `compare.py`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from reflectune.core import checks
from reflectune.core.config import bound_problems, setting
from reflectune.inference.scoring.trajectories import COSTS


@dataclass
class CompareConfig:
    """Compare finished evaluations of several data sets, models or seeds in one table of scores and costs."""

    evaluations: list[str] = setting([], "folders that `evaluate` wrote")
    output: str = setting("", "folder for compare.md, compare.svg and compare.json", check=checks.output_of())
    cost: str = setting("read", "the horizontal axis of the plot", choices=COSTS)
    dry_run: bool = setting(False, "say what would be done, and stop")

    def problems(self) -> list[str]:
        """Return what is wrong with the values, one sentence each."""
        issues = bound_problems(self, CompareConfig)
        issues += [] if self.evaluations else ["`evaluations` is empty; name folders that `evaluate` wrote"]
        issues += [] if self.output else ["`output` is needed: a folder for compare.md and compare.svg"]
        issues += [
            f"`evaluations`: {name} has no metrics.json; is its evaluation finished?"
            for name in self.evaluations
            if not Path(name, "metrics.json").is_file()
        ]
        return issues

"""The settings of `compare_annotators.py`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from reflectune.core import checks
from reflectune.core.config import bound_problems, setting
from reflectune.data_builders.annotators.choice import NAMES
from reflectune.formats.dataset import MANIFEST, split_issues
from reflectune.models.remote.endpoint import RemoteConfig


@dataclass
class CompareConfig(RemoteConfig):
    """Compare annotators on one split."""

    dataset: str = setting("", "data set folder")
    output: str = setting("", "folder for agreement.md, labels.jsonl and the LLM's replies", check=checks.output_of())
    split: str = setting("train", "whose questions", check=checks.split_name)
    annotators: list[str] = setting(["string", "gold"], f"which to compare: {', '.join(NAMES)}")
    truth: Literal["gold", "none"] = setting(
        "gold", "gold: the data set's evidence sections are the truth; none: compare only"
    )
    limit: int = setting(200, "knowledge-based questions, drawn by seed", low=1)
    seed: int = setting(0, "seed of that draw", low=0, high=checks.MOST_SEED)
    dry_run: bool = setting(False, "say how much would be labelled, and stop")

    def problems(self) -> list[str]:
        """What is wrong with the values, one sentence each."""
        issues = [f"`{name}` is needed" for name in ("dataset", "output", "split") if not getattr(self, name)]
        unknown = [name for name in self.annotators if name not in NAMES]
        if unknown or not self.annotators:
            issues.append(f"`annotators` are among {', '.join(NAMES)}; found {', '.join(unknown) or 'none'}")
        if len(set(self.annotators)) < len(self.annotators):
            issues.append("`annotators` names one twice")
        if self.dataset and not Path(self.dataset, MANIFEST).is_file():
            issues.append(f"`dataset`: {self.dataset} has no {MANIFEST}; build_world and convert write one")
        issues += split_issues("split", self.dataset, [self.split])
        issues += bound_problems(self, CompareConfig)
        return issues + (self.llm_problems() if "llm" in self.annotators else [])

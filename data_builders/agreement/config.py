"""The settings of `compare_annotators.py`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from reflectune.data_builders.annotators.choice import NAMES
from reflectune.models.remote.endpoint import RemoteConfig


def _help(text: str) -> dict[str, str]:
    return {"help": text}


@dataclass
class CompareConfig(RemoteConfig):
    """Compare annotators on one split."""

    dataset: str = field(default="", metadata=_help("data set folder"))
    output: str = field(default="", metadata=_help("folder for agreement.md, labels.jsonl and the LLM's replies"))
    split: str = field(default="train", metadata=_help("whose questions"))
    annotators: list[str] = field(
        default_factory=lambda: ["string", "gold"], metadata=_help(f"which to compare: {', '.join(NAMES)}")
    )
    truth: Literal["gold", "none"] = field(
        default="gold", metadata=_help("gold: the data set's evidence sections are the truth; none: compare only")
    )
    limit: int = field(default=200, metadata=_help("knowledge-based questions, drawn by seed"))
    seed: int = field(default=0, metadata=_help("seed of that draw"))
    dry_run: bool = field(default=False, metadata=_help("say how much would be labelled, and stop"))

    def problems(self) -> list[str]:
        """What is wrong with the values, one sentence each."""
        issues = [f"`{name}` is needed" for name in ("dataset", "output", "split") if not getattr(self, name)]
        unknown = [name for name in self.annotators if name not in NAMES]
        if unknown or not self.annotators:
            issues.append(f"`annotators` are among {', '.join(NAMES)}; found {', '.join(unknown) or 'none'}")
        if len(set(self.annotators)) < len(self.annotators):
            issues.append("`annotators` names one twice")
        if self.limit < 1:
            issues.append(f"`limit` must be at least 1, found {self.limit}")
        return issues + (self.llm_problems() if "llm" in self.annotators else [])

"""The settings of `grpo.py` that training needs; those of the pipelines that rewards are measured with are theirs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from reflectune.core import checks
from reflectune.core.config import bound_problems, setting
from reflectune.metrics.config import MetricConfig
from reflectune.models.names import model_name
from reflectune.train.rewards.gates.policy import PolicyLoss
from reflectune.train.settings.training import TrainingConfig

GATES = ("retrieve", "relevance")


@dataclass
class GateConfig(MetricConfig, TrainingConfig):
    """Refine the gates of a fine-tuned checkpoint by the reward of what follows from them."""

    model: str = setting("", "fine-tuned checkpoint to start from: a full one or an adapter", check=model_name)
    split: str = setting("train", "split of the data set whose questions to learn from", check=checks.split_name)
    limit: int | None = setting(None, "most questions, drawn by seed; all if unset", low=1)
    visual_limit: int | None = setting(
        None, "most of them that are visual-dependent, drawn by seed; all if unset", low=0
    )
    gates: list[str] = setting(["retrieve"], "gates to refine: retrieve, or retrieve and relevance")
    retrieval_cost: float = setting(0.01, "λ: taken off the reward of retrieving for each passage that is read", low=0)
    keeping_cost: float = setting(0.1, "gates with relevance: taken off the reward of keeping a passage", low=0)
    beta: float = setting(0.01, "weight of the divergence from the checkpoint's own gates", low=0)
    policy_loss: PolicyLoss = setting(
        "regression",
        "expected: the expected reward; grpo: rewards over their standard deviation; regression: outcomes' "
        "log-probabilities weighted by their rewards, which moves gates that are sure, too",
    )
    hold: float = setting(
        1.0, "weight of what else the checkpoint says staying as it is: relevance gates, answers, MCT", low=0
    )
    refresh_steps: int = setting(
        0, "steps after which rewards are measured anew; 0: once, before the first step", low=0
    )
    rewards: str = setting(
        "",
        "folder of the answers that rewards are taken from, output_dir/rewards if unset; runs that differ in their "
        "costs alone can share one",
        check=checks.output_folder,
    )
    batch_questions: int = setting(8, "questions answered together when rewards are measured", low=1)

    def problems(self) -> list[str]:
        """What is wrong with the values, with what they name and with how rewards are made, one sentence each."""
        issues = super().problems() + bound_problems(self, GateConfig)
        if "retrieve" not in self.gates or set(self.gates) - set(GATES):
            issues.append(f"`gates` is [retrieve] or [retrieve, relevance], found {self.gates}")
        if self.rewards and self.refresh_steps:
            issues.append("`rewards` can be shared only if they are measured once: leave it out, or `refresh_steps`")
        return issues

    def rewards_folder(self) -> Path:
        """Where the answers are kept."""
        return Path(self.rewards) if self.rewards else Path(self.output_dir, "rewards")

    def run_settings(self) -> dict[str, Any]:
        """The settings that determine the weights; data set and index are hashed instead of named."""
        settings = {name: value for name, value in super().run_settings().items() if name not in _HASHED}
        return {**settings, **_RECORDED}


_HASHED = ("dataset", "index", "ranked_entities", "rewards", "bem")
"""Settings whose content decides, and not where it is kept."""
_RECORDED: Final[Mapping[str, Any]] = {"train_split": "", "tree": True}
"""Keys of fine-tuning that stand in the record of every run, with the value that they always had, so that runs from
before can be resumed."""

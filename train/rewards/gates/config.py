"""The settings of `grpo.py` that training needs; those of the pipelines that rewards are measured with are theirs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from reflectune.core.config import cross_check, setting
from reflectune.core.values import OutputFolder, SplitName
from reflectune.metrics.config import MetricConfig
from reflectune.models.names import ModelName
from reflectune.train.rewards.gates.policy import PolicyLoss
from reflectune.train.settings.training import TrainingConfig

GATES = ("retrieve", "relevance")


class GateConfig(MetricConfig, TrainingConfig):
    """Refine the gates of a fine-tuned checkpoint by the reward of what follows from them."""

    model: ModelName = setting(
        "", "fine-tuned checkpoint to start from: a full one or an adapter", needed="a checkpoint that sft wrote"
    )
    split: SplitName = setting("train", "split of the data set whose questions to learn from")
    limit: int | None = setting(None, "most questions, drawn by seed; all if unset", ge=1)
    visual_limit: int | None = setting(
        None, "most of them that are visual-dependent, drawn by seed; all if unset", ge=0
    )
    gates: list[str] = setting(["retrieve"], "gates to refine: retrieve, or retrieve and relevance")
    retrieval_cost: float = setting(0.01, "λ: taken off the reward of retrieving for each passage that is read", ge=0)
    keeping_cost: float = setting(0.1, "gates with relevance: taken off the reward of keeping a passage", ge=0)
    beta: float = setting(0.01, "weight of the divergence from the checkpoint's own gates", ge=0)
    policy_loss: PolicyLoss = setting(
        "regression",
        "expected: the expected reward; grpo: rewards over their standard deviation; regression: outcomes' "
        "log-probabilities weighted by their rewards, which moves gates that are sure, too",
    )
    hold: float = setting(
        1.0, "weight of what else the checkpoint says staying as it is: relevance gates, answers, MCT", ge=0
    )
    refresh_steps: int = setting(0, "steps after which rewards are measured anew; 0: once, before the first step", ge=0)
    rewards: OutputFolder = setting(
        "",
        "folder of the answers that rewards are taken from, output_dir/rewards if unset; runs that differ in their "
        "costs alone can share one",
    )
    batch_questions: int = setting(8, "questions answered together when rewards are measured", ge=1)

    @cross_check
    def gate_problems(self) -> Iterator[str]:
        """Yield the problems of keys that must fit each other."""
        if "retrieve" not in self.gates or set(self.gates) - set(GATES):
            yield f"`gates` is [retrieve] or [retrieve, relevance], found {self.gates}"
        if self.rewards and self.refresh_steps:
            yield "`rewards` can be shared only if they are measured once: leave it out, or `refresh_steps`"

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

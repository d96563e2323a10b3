"""The settings of `grpo.py` that training needs; those of the pipelines that rewards are measured with are theirs."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from reflectune.core.config import setting
from reflectune.data_builders.metric_config import MetricConfig
from reflectune.train.config import SftConfig
from reflectune.train.data.mixture import Mixture
from reflectune.train.refining.gate_policy import PolicyLoss

GATES = ("retrieve", "relevance")


@dataclass
class GateConfig(MetricConfig, SftConfig):
    """Refine the gates of a fine-tuned checkpoint by the reward of what follows from them."""

    model: str = setting("", "fine-tuned checkpoint to start from: a full one or an adapter")
    split: str = setting("train", "split of the data set whose questions to learn from")
    limit: int | None = setting(None, "most questions, drawn by seed; all if unset")
    visual_limit: int | None = setting(None, "most of them that are visual-dependent, drawn by seed; all if unset")
    gates: list[str] = setting(["retrieve"], "gates to refine: retrieve, or retrieve and relevance")
    retrieval_cost: float = setting(0.01, "λ: taken off the reward of retrieving for each passage that is read")
    keeping_cost: float = setting(0.1, "gates with relevance: taken off the reward of keeping a passage")
    beta: float = setting(0.01, "weight of the divergence from the checkpoint's own gates")
    policy_loss: PolicyLoss = setting(
        "regression",
        "expected: the expected reward; grpo: rewards over their standard deviation; regression: outcomes' "
        "log-probabilities weighted by their rewards, which moves gates that are sure, too",
    )
    hold: float = setting(
        1.0, "weight of what else the checkpoint says staying as it is: relevance gates, answers, MCT"
    )
    refresh_steps: int = setting(0, "steps after which rewards are measured anew; 0: once, before the first step")
    rewards: str = setting(
        "",
        "folder of the answers that rewards are taken from, output_dir/rewards if unset; runs that differ in their "
        "costs alone can share one",
    )
    batch_questions: int = setting(8, "questions answered together when rewards are measured")

    # Keys of fine-tuning that have no meaning here, and so are none.
    train_data: Mixture = field(default_factory=Mixture, init=False)
    train_split: str = field(default="", init=False)
    image_root: str = field(default="", init=False)
    tree: bool = field(default=True, init=False)
    eval_data: str = field(default="", init=False)
    eval_split: str = field(default="", init=False)
    eval_answers: int = field(default=0, init=False)
    eval_steps: int = field(default=1, init=False)
    best_metric: str = field(default="", init=False)
    early_stopping_patience: int | None = field(default=None, init=False)

    def data_problems(self) -> list[str]:
        """What is wrong with how rewards are made."""
        issues = []
        if "retrieve" not in self.gates or set(self.gates) - set(GATES):
            issues.append(f"`gates` is [retrieve] or [retrieve, relevance], found {self.gates}")
        for name in ("retrieval_cost", "keeping_cost", "beta", "hold", "refresh_steps", "visual_limit"):
            value = getattr(self, name)
            if value is not None and value < 0:
                issues.append(f"`{name}` must be at least 0, found {value}")
        for name in ("batch_questions", "limit"):
            value = getattr(self, name)
            if value is not None and value < 1:
                issues.append(f"`{name}` must be at least 1, found {value}")
        if self.rewards and self.refresh_steps:
            issues.append("`rewards` can be shared only if they are measured once: leave it out, or `refresh_steps`")
        return issues

    def rewards_folder(self) -> Path:
        """Where the answers are kept."""
        return Path(self.rewards) if self.rewards else Path(self.output_dir, "rewards")

    def run_settings(self) -> dict[str, Any]:
        """The settings that determine the weights; data set and index are hashed instead of named."""
        return {name: value for name, value in super().run_settings().items() if name not in _HASHED}


_HASHED = ("dataset", "index", "rewards", "bem")
"""Settings whose content decides, and not where it is kept."""

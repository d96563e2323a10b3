"""Training settings of `grpo.py`; the pipelines have those for measuring rewards."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from reflectune.core.config import cross_check, setting
from reflectune.core.values import OutputFolder
from reflectune.models.names import ModelName
from reflectune.train.settings.training import RewardConfig

GATES = ("retrieve", "relevance")

PolicyLoss = Literal["expected", "grpo", "regression"]
"""Objectives of a gate; see `reflectune.train.gate_rewards.policy`."""


class GateConfig(RewardConfig):
    """Train the gates of a fine-tuned checkpoint by reward."""

    model: ModelName = setting(
        "",
        "fine-tuned checkpoint to start from: a full one or an adapter",
        needed="a checkpoint that sft wrote",
        hashed=False,  # its content is
    )
    limit: int | None = setting(None, "maximum number of questions, drawn by seed; all if unset", ge=1)
    visual_limit: int | None = setting(
        None, "maximum number of visual-dependent ones among them, drawn by seed; all if unset", ge=0
    )
    gates: list[str] = setting(["retrieve"], "gates to train: retrieve, or retrieve and relevance")
    retrieval_cost: float = setting(0.01, "λ: cost of retrieving, for each passage that is read", ge=0)
    keeping_cost: float = setting(0.1, "gates with relevance: cost of keeping a passage", ge=0)
    beta: float = setting(0.01, "weight of the divergence from the checkpoint's own gates", ge=0)
    policy_loss: PolicyLoss = setting(
        "regression",
        "expected: the expected reward; grpo: rewards over their standard deviation; regression: outcomes' "
        "log-probabilities weighted by their rewards, which moves confident gates too",
    )
    hold: float = setting(1.0, "weight of keeping the checkpoint's other outputs: relevance gates, answers, MCT", ge=0)
    refresh_steps: int = setting(0, "steps until rewards are measured again; 0: once, before the first step", ge=0)
    rewards: OutputFolder = setting(
        "",
        "folder of the answers that rewards are computed from, output_dir/rewards if unset; runs that differ in their "
        "costs alone can share one",
        hashed=False,
    )
    batch_questions: int = setting(8, "questions answered together when rewards are measured", ge=1)

    @cross_check
    def gate_problems(self) -> Iterator[str]:
        """Yield the problems of gates and rewards."""
        if "retrieve" not in self.gates or set(self.gates) - set(GATES):
            yield f"`gates` is [retrieve] or [retrieve, relevance], found {self.gates}"
        if self.rewards and self.refresh_steps:
            yield "`rewards` can be shared only if they are measured once: leave it out, or `refresh_steps`"

    def rewards_folder(self) -> Path:
        """Return the folder of the answers."""
        return Path(self.rewards) if self.rewards else Path(self.output_dir, "rewards")

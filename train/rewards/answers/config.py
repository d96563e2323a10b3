"""The settings of `reag_grpo.py`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from reflectune.core import checks
from reflectune.core.config import bound_problems, setting
from reflectune.formats.dataset import split_issues
from reflectune.metrics.config import MetricConfig
from reflectune.models.names import model_name
from reflectune.train.data.mixture import Part
from reflectune.train.settings.training import TrainingConfig


@dataclass
class AnswerGrpoConfig(MetricConfig, TrainingConfig):
    """Reinforce the answers of a fine-tuned checkpoint: GRPO of TRL, without a KL term, rewards of accuracy and format.

    `per_device_train_batch_size` counts replies.
    """

    model: str = setting("", "checkpoint of the answer's SFT to start from: full or an adapter", check=model_name)
    scheme: str = setting("plain", "always plain: replies have no tokens of their own")
    dataset: str = setting("", "data set folder: its questions say which answers are right")
    split: str = setting("train", "split of its questions", check=checks.split_name)
    train_data: str = setting("", "prompts: a folder that write_lessons wrote with `stage: grpo`")
    train_split: str = setting("train", "split of the prompts", check=checks.split_name)
    limit: int | None = setting(None, "most prompts, drawn by seed; all if unset", low=1)
    generations: int = setting(8, "replies to a prompt, which are compared with each other", low=2)
    max_new_tokens: int = setting(256, "longest reply in tokens, thoughts included", low=1)
    temperature: float = setting(1.0, "of sampling replies", above=0)
    accuracy_reward: float = setting(1.0, "reward of an answer that is right by the metric", low=0)
    format_reward: float = setting(0.2, "reward of thoughts and an answer inside their tags, and nothing else", low=0)
    policy_loss: Literal["grpo", "dapo", "dr_grpo", "bnpo"] = setting(
        "grpo", "how TRL averages a reply's tokens: grpo, over each reply; the others, see its `loss_type`"
    )

    def problems(self) -> list[str]:
        """What is wrong with the values and with what they name, one sentence each."""
        issues = super().problems() + bound_problems(self, AnswerGrpoConfig)
        issues += [f"`{name}` is needed: {why}" for name, why in _NEEDED.items() if not getattr(self, name)]
        if self.scheme != "plain":
            issues.append(f"`scheme` is plain: replies have no tokens of their own; found `{self.scheme}`")
        if self.method == "qlora":
            issues.append("`method: qlora`: TRL trains a 4-bit model's adapters in bfloat16; use lora or full")
        if not self.accuracy_reward and not self.format_reward:
            issues.append("`accuracy_reward` and `format_reward` are both 0: nothing would be learned")
        if self.dataset and not Path(self.dataset, "dataset.json").is_file():
            issues.append(f"`dataset`: {self.dataset} has no dataset.json; build_world and convert write one")
        issues += split_issues("split", self.dataset, [self.split])
        if self.train_data and not self.part.file.is_file():
            issues.append(f"`train_data`: {self.part.file} does not exist; write it with inference.write_lessons")
        return issues + self.metric_issues(self.dataset)

    @property
    def part(self) -> Part:
        """The prompts."""
        return Part(self.train_data, self.train_split)

    def run_settings(self) -> dict[str, Any]:
        """The settings that determine the weights; data sets and prompts are hashed instead of named."""
        return {name: value for name, value in super().run_settings().items() if name not in _HASHED}


_NEEDED: Final = {
    "dataset": "a data set folder, whose questions say which answers are right",
    "train_data": "prompts, e.g. what write_lessons writes with `stage: grpo`",
}
_HASHED: Final = ("dataset", "train_data", "bem")

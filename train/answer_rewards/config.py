"""Settings of `reag_grpo.py`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from typing import Any, Literal

from reflectune.core.config import cross_check, setting
from reflectune.core.values import SplitName
from reflectune.models.names import ModelName
from reflectune.models.remote.endpoint import ApiRoot, ConnectionKeys
from reflectune.train.data.mixture import DataSource
from reflectune.train.settings.training import RewardConfig


class ReplyGrpoConfig(RewardConfig, ConnectionKeys):
    """Settings of TRL's GRPO without a KL term."""

    model: ModelName = setting(
        "",
        "checkpoint of the answer's SFT to start from: full or an adapter",
        needed="a checkpoint that sft wrote",
        hashed=False,  # its content is, and that of `dataset` and `train_data`
    )
    scheme: Literal["plain"] = setting("plain", "always plain: replies have no reflection tokens")
    limit: int | None = setting(None, "maximum number of prompts, drawn by seed; all if unset", ge=1)
    generations: int = setting(8, "replies per prompt: the group size of GRPO", ge=2)
    per_device_train_batch_size: int = setting(8, "replies, of one or several prompts", ge=1, hashed=False)
    max_new_tokens: int = setting(256, "maximum tokens per reply, thoughts included", ge=1)
    temperature: float = setting(1.0, "temperature of sampling replies", gt=0)
    accuracy_reward: float = setting(1.0, "reward of an answer that is right by the metric", ge=0)
    format_reward: float = setting(0.2, "reward of a reply that is exactly one <think> and one <answer> block", ge=0)
    server: ApiRoot = setting(
        "",
        "vLLM server that samples the replies, e.g. http://localhost:8000/v1; it serves the exported "
        "checkpoint `model`, and loads new weights from `output_dir`; transformers samples if unset",
        secret=True,
        hashed=False,
    )

    @classmethod
    def unread_keys(cls, values: Mapping[str, Any]) -> Set[str]:
        """Return the keys of trainings that read trees, and of schemes with tokens."""
        return {"compile", "dataloader_workers", "lora_dropout", "projector_learning_rate", "prompts"}

    @cross_check
    def method_problems(self) -> Iterator[str]:
        """Yield the problems of settings that TRL's trainer doesn't support."""
        if self.projector_learning_rate is not None:
            yield "`projector_learning_rate` is for sft and grpo: TRL's optimiser has one rate"
        if self.method == "qlora":
            yield "`method: qlora`: TRL trains a 4-bit model's adapters in bfloat16; use lora or full"
        if self.lora_dropout:
            yield "`lora_dropout` is not used here: replies are scored without dropout; leave it out"

    @cross_check
    def reward_problems(self) -> Iterator[str]:
        """Yield the problem of rewards that are both 0."""
        if not self.accuracy_reward and not self.format_reward:
            yield "`accuracy_reward` and `format_reward` are both 0: nothing would be learned"


class AnswerGrpoConfig(ReplyGrpoConfig):
    """Train the answers of a fine-tuned checkpoint by TRL's GRPO, for accuracy and format."""

    train_data: str = setting(
        "",
        "prompts: a folder that write_lessons wrote with `stage: grpo`",
        needed="prompts, which write_lessons writes with `stage: grpo`",
        hashed=False,
    )
    train_split: SplitName = setting("train", "split of the prompts", hashed=False)
    policy_loss: Literal["grpo", "dapo", "dr_grpo", "bnpo"] = setting(
        "grpo", "TRL's `loss_type`; grpo averages the tokens of each reply"
    )

    @cross_check
    def prompt_problems(self) -> Iterator[str]:
        """Yield the problem of missing prompts."""
        if self.train_data and not self.source.file.is_file():
            yield f"`train_data`: {self.source.file} does not exist; write it with examples.lessons.write_lessons"

    @property
    def source(self) -> DataSource:
        """The prompts."""
        return DataSource(self.train_data, self.train_split)

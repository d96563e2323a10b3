"""Settings of `sft.py`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from reflectune.core.config import Settings, cross_check, setting
from reflectune.core.values import OutputFolder, SplitName
from reflectune.train.data.mixture import DataSource, Mixture, MixtureSetting
from reflectune.train.settings.training import TrainingConfig
from reflectune.train.settings.validation import ValidationConfig


class DataConfig(Settings):
    """Settings of the training data, and of how a question's passages are read."""

    train_data: MixtureSetting = setting(
        Mixture(),
        "reflection data: a folder, one Parquet file, or several of them, each with how often an epoch reads its "
        "examples (0.5: half of them)",
        needed="a folder of reflection data, e.g. the output of build_mr2ag",
        hashed=False,  # its content is, here and below
    )
    train_split: SplitName = setting("train", "split to train on, of a folder that names no other", hashed=False)
    image_root: str = setting("", "folder of the images; the one in the data's manifest if unset", hashed=False)
    tree: bool = setting(True, "read a question's prefix once for all its passages, or once per passage")
    answer_weight: float | None = setting(
        None,
        "scheme plain: α, the share of a reply's loss that its `<answer>` has, the thoughts before it having the rest "
        "(ReAG: 0.8); all tokens alike if unset",
        ge=0,
        le=1,
    )

    @cross_check
    def data_problems(self) -> list[str]:
        """Return the problems of the training data, as far as they are seen without reading it."""
        if malformed := self.train_data.malformed():
            return [f"`train_data`: {problem}" for problem in malformed]
        return [f"`train_data`: {problem}" for source in self.sources() for problem in source.problems()]

    def sources(self) -> list[DataSource]:
        """Return the data sets to train on."""
        return self.train_data.sources(self.train_split, self.image_root)


class SftConfig(ValidationConfig, TrainingConfig, DataConfig):
    """Fine-tune a model on reflection data: fully, by LoRA, or by QLoRA."""

    gate_brier: float = setting(
        0.0, "weight of (p - y)² in a gate token's loss, p the softmax of the gate's two logits; calibrates", ge=0
    )
    tokens_per_device: int | None = setting(
        None,
        "maximum tokens per forward pass, images included: a step's questions are split into micro-batches of that "
        "size, balanced over processes; if unset a pass reads per_device_train_batch_size questions",
        ge=1,
        hashed=False,
    )
    cache_features: OutputFolder = setting(
        "",
        "folder for the features of a frozen vision tower, which then reads each image once; shared by runs",
        hashed=False,
    )

    @cross_check
    def weight_problems(self) -> Iterator[str]:
        """Yield the problems of weights without a meaning for the scheme."""
        if self.gate_brier and self.scheme == "plain":
            yield "`gate_brier` weighs gates, and `scheme: plain` has none"
        if self.answer_weight is not None and self.scheme != "plain":
            yield f"`answer_weight` weighs replies in words, of `scheme: plain`; found `scheme: {self.scheme}`"

    @cross_check
    def eval_problems(self) -> list[str]:
        """Return the problems of validation."""
        return self.validation_problems(self.scheme, self.eval_source())

    @cross_check
    def cache_problems(self) -> Iterator[str]:
        """Yield the problem of caching the features of a tower that trains."""
        if self.cache_features and "vision_tower" in self.trained_towers:
            yield (
                "`cache_features` needs a vision tower that stays as it is, and it trains: name the other parts in "
                "`train_towers`"
            )

    def eval_source(self) -> DataSource:
        """Return the data set to validate on."""
        return DataSource(self.eval_data, "val", self.image_root)

    def hashed(self) -> dict[str, Any]:
        """Return the settings that determine the weights. Validation does if it chooses them."""
        unused = () if self.best_metric else ValidationConfig.model_fields
        return {name: value for name, value in super().hashed().items() if name not in unused}

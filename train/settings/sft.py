"""The settings of `sft.py`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from reflectune.core import checks
from reflectune.core.config import bound_problems, setting
from reflectune.models.features.config import FeatureKeys
from reflectune.train.data.mixture import Mixture, Part
from reflectune.train.settings.training import TrainingConfig
from reflectune.train.settings.validation import ValidationConfig


@dataclass
class DataConfig:
    """Reflection data, where their images are, and how a question's passages are read."""

    train_data: Mixture = setting(
        Mixture(),
        "reflection data: a folder, one Parquet file, or several of them, each with how often an epoch reads its "
        "examples (0.5: half of them)",
    )
    train_split: str = setting("train", "split to train on, of a folder that names no other", check=checks.split_name)
    image_root: str = setting("", "folder of the images; the one in the data's manifest if unset")
    tree: bool = setting(True, "read a question's prefix once for all its passages, or once per passage")
    answer_weight: float | None = setting(
        None,
        "scheme plain: α, the share of a reply's loss that its `<answer>` has, the thoughts before it having the rest "
        "(ReAG: 0.8); all tokens alike if unset",
        low=0,
        high=1,
    )

    def __post_init__(self) -> None:
        """Read the data sets, which may be a path, a mapping or JSON."""
        self.train_data = Mixture(self.train_data)

    def problems(self) -> list[str]:
        """What is wrong with the training data, as far as can be seen without reading it."""
        if issues := bound_problems(self, DataConfig):
            return issues
        if not self.train_data:
            return ["`train_data` is needed: a folder of reflection data, e.g. the output of data_builders.build_mr2ag"]
        if malformed := self.train_data.malformed():
            return [f"`train_data`: {problem}" for problem in malformed]
        return [f"`train_data`: {problem}" for part in self.parts() for problem in part.problems()]

    def parts(self) -> list[Part]:
        """The data sets to train on."""
        return self.train_data.parts(self.train_split, self.image_root)


@dataclass
class SftConfig(FeatureKeys, ValidationConfig, TrainingConfig, DataConfig):
    """Fine-tune a model on reflection data: fully, by LoRA, or by QLoRA."""

    def problems(self) -> list[str]:
        """What is wrong with the values and with the files that they name, one sentence each."""
        issues = TrainingConfig.problems(self) + DataConfig.problems(self)
        if self.answer_weight is not None and self.scheme != "plain":
            issues.append(f"`answer_weight` weighs replies in words, of `scheme: plain`; found `scheme: {self.scheme}`")
        return issues + self.validation_problems(self.scheme, self.eval_part())

    def value_problems(self) -> list[str]:
        """What is wrong with the values by themselves, wherever they are read."""
        issues = super().value_problems() + ValidationConfig.problems(self)
        return issues + self.feature_problems(self.trained_towers)

    def eval_part(self) -> Part:
        """The data set to validate on."""
        return Part(self.eval_data, self.eval_split, self.image_root)

    def run_settings(self) -> dict[str, Any]:
        """The settings that determine the weights; of the data their content does, wherever they are."""
        unread = {"train_data", "image_root", "cache_features", "cache_dtype"} | self.undecided()
        unread |= {"answer_weight"} if self.answer_weight is None else set()  # as before there was one
        decided = {name: value for name, value in super().run_settings().items() if name not in unread}
        return decided | self.feature_settings()

"""Which model is trained, and what of it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from reflectune.core.config import bound_problems, setting
from reflectune.models.processing.image_config import ImageKeys


@dataclass
class ModelConfig(ImageKeys):
    """The model, the scheme that it learns, and how it is given pictures."""

    model: str = setting("miniature/llava", "base model: a miniature, a hub id or a folder")
    scheme: str = setting("mr2ag", "whose tokens and prompts to train")

    def problems(self) -> list[str]:
        """What is wrong with the values, one sentence each."""
        return self.image_problems()


@dataclass
class AdapterConfig:
    """Which weights train: all of them, or adapters."""

    method: Literal["full", "lora", "qlora"] = setting(
        "full", "train all weights, adapters, or adapters on a 4-bit language model"
    )
    freeze_vision: bool = setting(False, "keep the vision tower as it is (full; LoRA always does)")
    double_quantization: bool = setting(
        True, "qlora: quantise the scales of the 4-bit weights too, 0.37 bits less a weight"
    )
    lora_r: int = setting(16, "rank of the adapters", low=1)
    lora_alpha: int = setting(32, "scale of the adapters, times 1/lora_r", low=1)
    lora_dropout: float = setting(0.0, "dropout before the adapters", low=0, high=0.99)
    lora_targets: str = setting(
        r".*language_model.*\.(q|k|v|o|gate|up|down)_proj",
        "regular expression that a module's whole name must match to get an adapter",
    )

    def problems(self) -> list[str]:
        """What is wrong with the values, one sentence each."""
        issues = bound_problems(self, AdapterConfig)
        try:
            re.compile(self.lora_targets)
        except re.error as error:
            issues.append(f"`lora_targets` is no regular expression: {error}")
        return issues

    @property
    def adapters_dropout(self) -> float:
        """Dropout before the adapters, if the method has any."""
        return 0.0 if self.method == "full" else self.lora_dropout

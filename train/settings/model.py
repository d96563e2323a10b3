"""Settings of the model to train, and of the weights that train."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, Literal

from reflectune.core.config import Settings, cross_check, setting
from reflectune.models.names import ModelName
from reflectune.models.rendering.image_config import ImageKeys

TOWERS: Final = ("vision_tower", "projector", "language_model")
"""The parts of a multimodal model, as `train_towers` names them."""


class ModelConfig(ImageKeys):
    """Settings of the model, its scheme, and how images are fitted."""

    model: ModelName = setting(
        "miniature/llava",
        "base model: a miniature, a hub id or a folder",
        needed="e.g. miniature/llava, llava-hf/llava-1.5-7b-hf or a folder",
        hashed=False,  # its content is
    )
    scheme: str = setting("mr2ag", "scheme of tokens and prompts to train", needed="e.g. mr2ag")
    prompts: str = setting(
        "", "variant of its prompts; mmkb_rag: search_result, by which P_SRT reads the entry's rank and similarity"
    )


class AdapterConfig(Settings):
    """Settings of the weights that train: all, those of some towers, or adapters."""

    method: Literal["full", "lora", "qlora"] = setting(
        "full", "train all weights, adapters, or adapters on a 4-bit language model"
    )
    train_towers: list[str] = setting(
        [],
        "parts that train: vision_tower, projector, language_model (by adapters if `method` says so); if unset all of "
        "them, or of LoRA and QLoRA the language model",
    )
    projector_learning_rate: float | None = setting(
        None, "peak learning rate of the projector; learning_rate if unset", gt=0
    )
    lora_r: int = setting(16, "rank of the adapters", ge=1)
    lora_alpha: int = setting(32, "scale of the adapters, times 1/lora_r", ge=1)
    lora_dropout: float = setting(0.0, "dropout before the adapters", ge=0, le=0.99)
    lora_targets: str = setting(
        r".*language_model.*\.((q|k|v|o|out|gate|up|down)_proj|in_proj_(qkv|z))",
        "regular expression that a module's whole name must match to get an adapter",
    )

    @property
    def trained_towers(self) -> frozenset[str]:
        """The parts of the model that train, the language model's by adapters if `method` says so."""
        if self.train_towers:
            return frozenset(self.train_towers)
        return frozenset(TOWERS if self.method == "full" else ["language_model"])

    @property
    def adapters_dropout(self) -> float:
        """Dropout before the adapters; 0 if the method has none."""
        return 0.0 if self.method == "full" else self.lora_dropout

    @cross_check
    def target_problems(self) -> Iterator[str]:
        """Yield the problem of `lora_targets` that is not a regular expression."""
        try:
            re.compile(self.lora_targets)
        except re.error as error:
            yield f"`lora_targets` is not a regular expression: {error}"

    @cross_check
    def tower_problems(self) -> Iterator[str]:
        """Yield the problems of the choice of towers."""
        if unknown := [name for name in self.train_towers if name not in TOWERS]:
            yield f"`train_towers` may name {', '.join(TOWERS)}; found {', '.join(unknown)}"
        if len(set(self.train_towers)) < len(self.train_towers):
            yield f"`train_towers` should name each part once; found {', '.join(self.train_towers)}"
        trained = self.trained_towers
        if self.method != "full" and "language_model" not in trained:
            yield (
                f"`method: {self.method}` trains adapters of the language model, and `train_towers` leaves it out; "
                "name language_model too, or set `method: full`, which trains the named parts alone"
            )
        if self.method != "full" and "vision_tower" in trained:
            yield (
                f"`method: {self.method}` keeps the vision tower as it is; drop vision_tower from `train_towers`, or "
                "set `method: full`"
            )
        rate = self.projector_learning_rate
        if rate is not None and "projector" not in trained:
            yield "`projector_learning_rate`: the projector doesn't train; name it in `train_towers`"
        if rate is not None and trained == {"projector"}:
            yield "`projector_learning_rate`: nothing but the projector trains; set `learning_rate`"

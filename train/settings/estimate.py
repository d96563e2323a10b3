"""Settings of `estimate.py`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from typing import Any, Literal

from reflectune.core.config import cross_check, setting
from reflectune.core.values import Dtype
from reflectune.train.settings.saving import PublishingConfig, SavingConfig
from reflectune.train.settings.sft import DataConfig, SftConfig
from reflectune.train.settings.training import OptimisationConfig
from reflectune.train.settings.validation import ValidationConfig


class EstimateConfig(SftConfig):
    """Settings of a run, and of the machine that it is estimated for."""

    processes: int = setting(1, "devices that train together", gt=0)
    sharding: Literal["none", "zero1", "zero2", "zero3", "fsdp"] = setting("none", "sharding of the model")
    offload: bool = setting(False, "keep weights and optimiser states in the CPU's memory")
    device_gib: float | None = setting(None, "memory of a device in GiB, for a verdict", gt=0)
    image_tokens: int | None = setting(
        None, "tokens of an image; if unset those of a large one, of Qwen of `max_pixels` (1 MP if that is 0)", gt=0
    )
    branches: int | None = setting(
        None, "passages or prompts of a long question; those of the recipes' data if unset", gt=0
    )
    branch_tokens: int = setting(250, "tokens of a branch, with its question and answer", gt=0)
    branch_supervised: int = setting(20, "supervised tokens of a branch", gt=0)

    @property
    def precision(self) -> Dtype:
        """Precision of the forward pass; for `dtype: auto` that of a GPU that computes in bfloat16."""
        return "bfloat16" if self.dtype == "auto" else self.dtype

    @classmethod
    def unread_keys(cls, values: Mapping[str, Any]) -> Set[str]:
        """Return the keys of a training's data, optimiser, validation, checkpoints and publication."""
        kinds = (DataConfig, OptimisationConfig, ValidationConfig, SavingConfig, PublishingConfig)
        unread = {key for kind in kinds for key in kind.model_fields}
        return unread - {"tree", "per_device_train_batch_size", "gradient_accumulation_steps"}

    def needed_problems(self) -> list[str]:
        """Return nothing: data, model, output and QLoRA's library may be missing."""
        return []

    @cross_check
    def sharding_problems(self) -> Iterator[str]:
        """Yield the problems of a launch that doesn't exist, or is refused."""
        if self.method != "full" and self.sharding in ("zero3", "fsdp"):
            yield f"`method: {self.method}` under {self.sharding} is not supported; use zero2, or no `sharding`"
        if self.offload and self.sharding == "none":
            yield "`offload` needs `sharding`: DeepSpeed and FSDP alone offload"

    data_problems = eval_problems = quantization_problems = needed_problems

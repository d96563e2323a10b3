"""How weights are moved and in what precision that is computed, and the settings that every training has."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from reflectune.core.config import Settings, cross_check, setting
from reflectune.core.values import Seed
from reflectune.models.weights.quantization import missing_bitsandbytes
from reflectune.train.settings.model import AdapterConfig, ModelConfig
from reflectune.train.settings.saving import PublishingConfig, SavingConfig


class OptimisationConfig(Settings):
    """The optimiser, its schedule, and the batches that it is given."""

    learning_rate: float = setting(2e-5, "peak learning rate", gt=0)
    lr_scheduler: Literal["cosine", "linear", "constant_with_warmup"] = setting(
        "cosine", "how the learning rate falls after the warm-up"
    )
    warmup: float = setting(0.03, "warm-up: a share of all steps if below 1, else steps", ge=0)
    weight_decay: float = setting(0.0, "AdamW's weight decay", ge=0)
    adam_beta2: float = setting(0.999, "AdamW's second beta", ge=0, le=0.999999)
    max_grad_norm: float = setting(1.0, "clip gradients to this norm; 0 for no clipping", ge=0)
    epochs: float = setting(1.0, "passes over the data, if max_steps is unset", ge=1e-6)
    max_steps: int | None = setting(None, "optimiser steps, instead of epochs", ge=1)
    per_device_train_batch_size: int = setting(8, "questions, each with all its passages", ge=1)
    gradient_accumulation_steps: int = setting(1, "batches per optimiser step", ge=1)
    group_by_length: bool = setting(True, "batch questions of similar length")
    max_tokens: int | None = setting(None, "most tokens from image to answer; what the model can take if unset", ge=1)
    seed: Seed = setting(0, "seed of new token rows, data order and dropout")


class ComputeConfig(Settings):
    """Precision, device and memory."""

    dtype: Literal["float32", "bfloat16"] = setting(
        "float32", "precision of the forward pass (bfloat16 on a GPU); trained weights are kept in float32"
    )
    matmul_precision: Literal["highest", "high", "medium"] = setting(
        "highest",
        "float32 products: `medium` is 1.5 times as fast on many CPUs (oneDNN; bfloat16 where there is AMX), "
        "`high` is TF32 on a GPU",
    )
    device: Literal["auto", "cpu", "cuda"] = setting(
        "auto",
        "auto: an accelerator if there is one; cuda: refused where there is none. Launches place their processes",
    )
    gradient_checkpointing: bool = setting(False, "recompute activations to save memory")
    cache_mib: int = setting(512, "memory for encoded examples, per process, in MiB", ge=0)
    dataloader_workers: int = setting(0, "processes that encode examples; 0 encodes in the main one", ge=0)


class TrainingConfig(PublishingConfig, SavingConfig, ComputeConfig, OptimisationConfig, AdapterConfig, ModelConfig):
    """Train a model: which one, how, and what is written."""

    dry_run: bool = setting(False, "say what would be trained, and stop")

    @cross_check
    def quantization_problems(self) -> Iterator[str]:
        """Yield a problem if QLoRA's library is missing."""
        if self.method == "qlora" and (missing := missing_bitsandbytes()):
            yield f"`method`: {missing}"

    @cross_check
    def scheme_problems(self) -> list[str]:
        """Return a problem if the scheme's tokens can't be learned."""
        return self.token_problems(self.scheme)

    def run_settings(self) -> dict[str, Any]:
        """The settings that determine the weights: a run can only be resumed if they are the same."""
        unread = _FREE | (set() if self.method == "qlora" else {"double_quantization"}) | self.tower_settings()
        decided = {name: value for name, value in self.model_dump().items() if name not in unread}
        return decided | ({"device": "auto"} if self.device == "cuda" else {})  # the same where there is one


_FREE = frozenset(
    "model output_dir resume save_steps save_total_limit logging_steps report_to cache_mib dataloader_workers "
    "gradient_checkpointing push_to_hub hub_private licence dry_run per_device_train_batch_size "
    "gradient_accumulation_steps image_fit min_pixels max_pixels".split()
)
"""Settings that don't determine the weights. (`model` may be moved: its content is hashed, and how pictures are fitted
with it. Of the batch sizes their product with the number of processes does: see `reflectune.train.data.global_batch`.)
"""

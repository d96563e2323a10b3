"""How weights are moved and in what precision that is computed, and the settings that every training has."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal

from reflectune.core import checks
from reflectune.core.config import bound_problems, setting
from reflectune.models.weights.quantization import missing_bitsandbytes
from reflectune.train.settings.model import AdapterConfig, ModelConfig
from reflectune.train.settings.saving import PublishingConfig, SavingConfig


@dataclass
class OptimisationConfig:
    """The optimiser, its schedule, and the batches that it is given."""

    learning_rate: float = setting(2e-5, "peak learning rate", above=0)
    lr_scheduler: Literal["cosine", "linear", "constant_with_warmup"] = setting(
        "cosine", "how the learning rate falls after the warm-up"
    )
    warmup: float = setting(0.03, "warm-up: a share of all steps if below 1, else steps", low=0)
    weight_decay: float = setting(0.0, "AdamW's weight decay", low=0)
    adam_beta2: float = setting(0.999, "AdamW's second beta", low=0, high=0.999999)
    max_grad_norm: float = setting(1.0, "clip gradients to this norm; 0 for no clipping", low=0)
    epochs: float = setting(1.0, "passes over the data, if max_steps is unset", low=1e-6)
    max_steps: int | None = setting(None, "optimiser steps, instead of epochs", low=1)
    per_device_train_batch_size: int = setting(8, "questions, each with all its passages", low=1)
    gradient_accumulation_steps: int = setting(1, "batches per optimiser step", low=1)
    group_by_length: bool = setting(True, "batch questions of similar length")
    max_tokens: int | None = setting(None, "most tokens from image to answer; what the model can take if unset", low=1)
    seed: int = setting(0, "seed of new token rows, data order and dropout", low=0, high=checks.MOST_SEED)

    def problems(self) -> list[str]:
        """What is wrong with the values, one sentence each."""
        return bound_problems(self, OptimisationConfig)


@dataclass
class ComputeConfig:
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
    cache_mib: int = setting(512, "memory for encoded examples, per process, in MiB", low=0)
    dataloader_workers: int = setting(0, "processes that encode examples; 0 encodes in the main one", low=0)

    def problems(self) -> list[str]:
        """What is wrong with the values, one sentence each."""
        return bound_problems(self, ComputeConfig)


@dataclass
class TrainingConfig(PublishingConfig, SavingConfig, ComputeConfig, OptimisationConfig, AdapterConfig, ModelConfig):
    """Train a model: which one, how, and what is written. A dataclass takes its last base's fields first."""

    dry_run: bool = setting(False, "say what would be trained, and stop")

    def problems(self) -> list[str]:
        """What is wrong with the values, and with what they name, one sentence each."""
        issues = [f"`{name}` is needed: {why}" for name, why in _NEEDED.items() if not getattr(self, name)]
        issues += self.value_problems() + self.tracker_problems()
        if self.method == "qlora" and (missing := missing_bitsandbytes()):
            issues.append(f"`method`: {missing}")
        return issues + self.hub_problems()

    def value_problems(self) -> list[str]:
        """What is wrong with the values by themselves, wherever they are read."""
        concerns = (ModelConfig, AdapterConfig, OptimisationConfig, ComputeConfig, SavingConfig)
        issues = [problem for concern in concerns for problem in concern.problems(self)]
        return issues + self.token_problems(self.scheme)

    def run_settings(self) -> dict[str, Any]:
        """The settings that determine the weights: a run can only be resumed if they are the same."""
        unread = _FREE | (set() if self.method == "qlora" else {"double_quantization"}) | self.tower_settings()
        decided = {name: value for name, value in dataclasses.asdict(self).items() if name not in unread}
        return decided | ({"device": "auto"} if self.device == "cuda" else {})  # the same where there is one


_FREE = frozenset(
    "model output_dir resume save_steps save_total_limit logging_steps report_to cache_mib dataloader_workers "
    "gradient_checkpointing push_to_hub hub_private licence dry_run per_device_train_batch_size "
    "gradient_accumulation_steps image_fit min_pixels max_pixels".split()
)
"""Settings that don't determine the weights. (`model` may be moved: its content is hashed, and how pictures are fitted
with it. Of the batch sizes their product with the number of processes does: see `reflectune.train.data.global_batch`.)
"""
_NEEDED = {
    "output_dir": "a folder for the checkpoint",
    "model": "e.g. miniature/llava, llava-hf/llava-1.5-7b-hf or a folder",
    "scheme": "e.g. mr2ag",
}

"""Settings of the optimiser and of precision, and the union that every training has."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Literal

from reflectune.core.config import Settings, cross_check, setting
from reflectune.core.values import Seed
from reflectune.formats.dataset import SplitKey
from reflectune.metrics.config import MetricConfig
from reflectune.models.names import PrecisionKeys
from reflectune.models.schemes.registry import all_schemes
from reflectune.models.weights.quantization import missing_bitsandbytes
from reflectune.train.settings.model import AdapterConfig, ModelConfig
from reflectune.train.settings.saving import PublishingConfig, SavingConfig

CACHE_BYTES: Final = 2**29
"""Memory of a process for encoded examples that are read again."""


class OptimisationConfig(Settings):
    """Settings of the optimiser, its schedule and its batches."""

    learning_rate: float = setting(2e-5, "peak learning rate", gt=0)
    lr_scheduler: Literal["cosine", "linear", "constant_with_warmup"] = setting(
        "cosine", "schedule of the learning rate after the warm-up"
    )
    warmup: float = setting(0.03, "warm-up: a share of all steps if below 1, else steps", ge=0)
    weight_decay: float = setting(0.0, "AdamW's weight decay", ge=0)
    max_grad_norm: float = setting(1.0, "clip gradients to this norm; 0 for no clipping", ge=0)
    epochs: float = setting(1.0, "passes over the data, if max_steps is unset", ge=1e-6)
    max_steps: int | None = setting(None, "optimiser steps, instead of epochs", ge=1)
    # Their product with the number of processes is hashed (see `reflectune.train.data.global_batch`).
    per_device_train_batch_size: int = setting(8, "questions, each with all its passages", ge=1, hashed=False)
    gradient_accumulation_steps: int = setting(1, "batches per optimiser step", ge=1, hashed=False)
    max_tokens: int | None = setting(None, "maximum tokens from image to answer; the model's limit if unset", ge=1)
    seed: Seed = setting(0, "seed of new token rows, data order and dropout")


class ComputeConfig(PrecisionKeys):
    """Settings of precision, device and memory."""

    dtype: Literal["auto", "float32", "bfloat16"] = setting(
        "auto",
        "precision of the forward pass: float32, bfloat16, or auto: bfloat16 on a GPU that computes in it, else "
        "float32; trained weights are kept in float32",
    )
    matmul_precision: Literal["highest", "high", "medium"] = setting(
        "highest",
        "float32 matmuls: `medium` is 1.5 times as fast on many CPUs (oneDNN; bfloat16 where there is AMX), "
        "`high` is TF32 on a GPU",
    )
    device: Literal["auto", "cpu", "cuda"] = setting(
        "auto",
        "auto: an accelerator if there is one; cuda: an error if there is none. A launcher sets each process's device",
        hashed=False,  # its type is
    )
    compile: Literal["auto", "off"] = setting(
        "auto", "on a GPU, read trees by compiled attention, and compile the layers", hashed=False
    )
    gradient_checkpointing: bool | Literal["auto"] = setting(
        False,
        "recompute activations to save memory; auto: in as few layers as fit the device's memory",
        hashed=False,
    )
    dataloader_workers: int = setting(
        0, "processes that encode examples; 0 encodes in the main one", ge=0, hashed=False
    )


class TrainingConfig(PublishingConfig, SavingConfig, ComputeConfig, OptimisationConfig, AdapterConfig, ModelConfig):
    """Settings that every training has."""

    dry_run: bool = setting(False, "print the plan of the training, and stop", hashed=False)
    ddp_timeout: int = setting(
        1800,
        "timeout of collective operations, in seconds",
        ge=1,
        hashed=False,
    )

    def cache_bytes(self, *, read_again: bool = False) -> int:
        """Return the memory for encoded training examples; 0 if no process reads one again.

        Args:
            read_again: True if an epoch reads an example twice.
        """
        again = read_again or self.epochs > 1 or self.max_steps is not None
        return CACHE_BYTES if again and not self.dataloader_workers else 0

    @cross_check
    def quantization_problems(self) -> Iterable[str]:
        """Yield the problem of QLoRA's missing library."""
        if self.method == "qlora" and (missing := missing_bitsandbytes()):
            yield f"`method`: {missing}"

    @cross_check
    def scheme_problems(self) -> list[str]:
        """Return a problem if the scheme's new tokens can't be learned: their rows are the language model's."""
        known = all_schemes().get(self.scheme)
        if known is None or not known.tokens or "language_model" in self.trained_towers:
            return []
        return [
            f"`train_towers` leaves out language_model, whose rows of the tokens of `scheme: {self.scheme}` would stay "
            "untrained; name it too, or set `scheme: plain`"
        ]


class RewardConfig(SplitKey, MetricConfig, TrainingConfig):
    """Settings of trainings by reward."""

    @cross_check
    def recomputation_problems(self) -> Iterable[str]:
        """Yield the problem of a number of recomputed layers that would be forecast from training examples."""
        if self.gradient_checkpointing == "auto":
            yield "`gradient_checkpointing: auto` is for sft, which forecasts memory; set true or false"

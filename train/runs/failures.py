"""Errors of a training step name its examples, and running out of memory says which settings take less."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from transformers import TrainingArguments

from reflectune.core.devices import is_out_of_memory
from reflectune.core.errors import UserError
from reflectune.models.attention.pictures import without_repeats
from reflectune.models.attention.positions import inner_model
from reflectune.models.attention.tree import IGNORE
from reflectune.models.attention.tree_mask import STRIDE
from reflectune.train.estimates.activations import BatchSize
from reflectune.train.estimates.advice import suggestions
from reflectune.train.estimates.architecture import Architecture
from reflectune.train.estimates.forecast import forecast, memory_of, patches
from reflectune.train.estimates.memory import in_words, total
from reflectune.train.runs.arguments import global_batch
from reflectune.train.runs.launch import division
from reflectune.train.settings.model import AdapterConfig
from reflectune.train.settings.training import ComputeConfig

_FROM_WORKER = re.compile(r"Caught (\w+) in DataLoader worker")
_NO_BATCH = BatchSize(tokens=0, longest=0, supervised=0, patches=0, trees=0)
_SHOWN = 8
"""Examples that a message names."""


@dataclass(frozen=True)
class FailingBatch:
    """A batch of the collator, at the step that failed on it."""

    step: int
    inputs: Mapping[str, Any]

    @property
    def words(self) -> str:
        """The step and its examples, for a message."""
        examples = self.inputs["sample_ids"]
        more = f" and {len(examples) - _SHOWN} more" if len(examples) > _SHOWN else ""
        tokens = self.inputs["input_ids"].numel()
        return f"step {self.step}, on the examples {', '.join(examples[:_SHOWN])}{more} ({tokens:,} tokens)"

    def size(self, patch_size: int) -> BatchSize:
        """Count its tokens, patches and trees."""
        segments: Tensor = self.inputs["attention_mask"].flatten()
        _, lengths = (segments // STRIDE).unique(return_counts=True)
        return BatchSize(
            tokens=len(segments),
            longest=int(lengths.max()),
            supervised=int((self.inputs["labels"][:, 1:] != IGNORE).sum()),
            patches=patches(without_repeats(self.inputs)[0], patch_size) if "pixel_values" in self.inputs else 0,
            trees=len(lengths),
        )


class StepOutOfMemoryError(RuntimeError):
    """Memory ran out while a batch was read."""

    def __init__(self, batch: FailingBatch) -> None:
        super().__init__(f"out of memory at {batch.words}")
        self.batch = batch


@contextmanager
def naming(batch: FailingBatch) -> Iterator[None]:
    """Name the batch's examples in errors that this block raises.

    Raises:
        UserError: The model refuses its inputs (ValueError).
        StepOutOfMemoryError: Memory ran out.
        RuntimeError: Anything else failed; it is the cause, with its traceback.
    """
    try:
        yield
    except (UserError, OSError):  # these name their subject
        raise
    except ValueError as error:
        raise UserError(
            f"the model refuses {batch.words}: {error}; look into these examples, and whether the processor is this "
            "model's own"
        ) from error
    except Exception as error:
        if is_out_of_memory(error):
            raise StepOutOfMemoryError(batch) from error
        raise RuntimeError(f"failed at {batch.words}: {error}") from error


@contextmanager
def plain_worker_errors() -> Iterator[None]:
    """Strip the worker's traceback from a `UserError` that a DataLoader's worker raises in this block."""
    try:
        yield
    except UserError as error:
        from_worker = _FROM_WORKER.match(str(error))
        if from_worker is None:
            raise
        raise UserError(str(error).strip().rpartition(f"{from_worker[1]}: ")[2]) from None


@contextmanager
def advising(
    adapters: AdapterConfig, compute: ComputeConfig, model: nn.Module, args: TrainingArguments, why_fixed: str
) -> Iterator[None]:
    """Turn running out of memory in this block into an error that says which settings to change.

    Args:
        adapters: The weights that train.
        compute: Precision and checkpointing.
        model: The model, not wrapped.
        args: Arguments of the trainer.
        why_fixed: The reason why the global batch can't be divided differently; "" if it can.

    Raises:
        UserError: Memory ran out.
    """
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        batch = error.batch if isinstance(error, StepOutOfMemoryError) else None
        raise UserError(_advice(adapters, compute, model, batch, args, why_fixed)) from error


def _advice(
    adapters: AdapterConfig,
    compute: ComputeConfig,
    model: nn.Module,
    batch: FailingBatch | None,
    args: TrainingArguments,
    why_fixed: str,
) -> str:
    device, patch_size = args.device, Architecture.of(inner_model(model).config).patch_size
    if batch is None:
        where, size = "between batches (moving the model, or stepping its weights)", _NO_BATCH
    else:
        where, size = f"at {batch.words}", batch.size(patch_size)
    predicted = forecast(adapters, compute, model, size, device, division(os.environ, args.world_size))
    available = memory_of(device) or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    resumable = "" if why_fixed else ", or with a smaller batch and more accumulation"
    changes = "\n  ".join(suggestions(adapters, compute, global_batch(args), model, predicted, available))
    return (
        f"out of memory {where}. {device.type} has {in_words(available)}, and this takes about "
        f"{in_words(total(predicted.parts()))} by the estimate that --dry_run prints. These take less:\n  {changes}\n"
        f"The last checkpoint is kept: with `gradient_checkpointing` alone changed{resumable}, the run resumes "
        "from it; other changes need another `output_dir`"
    )

"""Errors of a training step: they name its examples, and for lack of memory, settings that need less."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from transformers import TrainingArguments

from reflectune.core.devices import is_out_of_memory
from reflectune.core.errors import UserError
from reflectune.train.runs.launch import sharding
from reflectune.train.settings.model import AdapterConfig
from reflectune.train.settings.training import ComputeConfig

_FROM_WORKER = re.compile(r"Caught (\w+) in DataLoader worker")
_MISFITS = "features and image tokens do not match"
"""Text of transformers' ValueError if the number of image tokens differs from the number of features."""
_SHOWN = 8
"""Maximum examples named in a message."""


@dataclass(frozen=True)
class FailingBatch:
    """A batch and the step in which it failed."""

    step: int
    sample_ids: Sequence[str]
    tokens: int = 0
    """Tokens of the batch, padding included; 0 if unknown."""
    budget: int | None = None
    """Maximum tokens of a micro-batch; None if batches have a fixed number of questions."""

    @property
    def words(self) -> str:
        """The step and its examples, for a message."""
        return f"step {self.step}{_on(self.sample_ids)}" + (f" ({self.tokens:,} tokens)" if self.tokens else "")


def _on(examples: Sequence[str]) -> str:
    more = f" and {len(examples) - _SHOWN} more" if len(examples) > _SHOWN else ""
    return f", on the examples {', '.join(examples[:_SHOWN])}{more}" if examples else ""


def not_finite(step: int, norm: float, losses: Sequence[tuple[float, Sequence[str]]]) -> UserError:
    """Return the error about a step whose loss or gradient is not finite.

    Args:
        step: The step.
        norm: The gradient's norm.
        losses: Losses of the step's batches in all processes, each with its examples.
    """
    bad_losses = [(loss, examples) for loss, examples in losses if not math.isfinite(loss)]
    found = f"the loss became {bad_losses[0][0]}" if bad_losses else f"the gradient's norm became {norm}"
    examples = [example for _, batch in bad_losses or losses for example in batch]
    advice = "lower `learning_rate`, or check these examples" if examples else "lower `learning_rate`"
    return UserError(f"{found} at step {step}{_on(examples)}; {advice}. The last checkpoint is kept")


class StepOutOfMemoryError(RuntimeError):
    """Memory ran out in a batch."""

    def __init__(self, batch: FailingBatch) -> None:
        super().__init__(f"out of memory at {batch.words}")
        self.batch = batch


@contextmanager
def naming(batch: FailingBatch) -> Iterator[None]:
    """Name the batch's examples in errors that this block raises.

    Raises:
        UserError: The number of image tokens in a prompt differs from the number of features.
        StepOutOfMemoryError: Memory ran out.
        RuntimeError: Anything else failed; the original error is its cause.
    """
    try:
        yield
    except (UserError, OSError):  # their messages are specific enough
        raise
    except Exception as error:
        if is_out_of_memory(error):
            raise StepOutOfMemoryError(batch) from error
        if _MISFITS in str(error):
            raise UserError(
                f"the model refuses {batch.words}: {error}; check these examples, and that the processor belongs to "
                "this model"
            ) from error
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
def advising_on_memory(
    adapters: AdapterConfig, compute: ComputeConfig, args: TrainingArguments, why_fixed: str, options: Collection[str]
) -> Iterator[None]:
    """Turn running out of memory in this block into an error that lists settings to change.

    Args:
        adapters: The weights that train.
        compute: Precision and checkpointing.
        args: Arguments of the trainer.
        why_fixed: Reason why the global batch can't be divided differently; "" if it can.
        options: Options of this training that need less memory: `qlora`, `zero3`.

    Raises:
        UserError: Memory ran out.
    """
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        batch = error.batch if isinstance(error, StepOutOfMemoryError) else None
        where = f"at {batch.words}" if batch else "between batches (moving the model, or stepping its weights)"
        changes = (
            "\n  ".join(_changes(adapters, compute, args, batch, options)) or "none: use a device with more memory"
        )
        resumable = "" if why_fixed else ", or with a smaller batch and more accumulation"
        resumable_keys = "`gradient_checkpointing`"
        if batch and batch.budget:
            resumable_keys = "`tokens_per_device` or `gradient_checkpointing`"
        raise UserError(
            f"out of memory {where}. These settings need less memory (`reflectune estimate` prints how much):\n"
            f"  {changes}\n"
            f"The last checkpoint is kept: if only {resumable_keys} is changed{resumable}, the run resumes from it; "
            "other changes need another `output_dir`"
        ) from error


def _changes(
    adapters: AdapterConfig,
    compute: ComputeConfig,
    args: TrainingArguments,
    batch: FailingBatch | None,
    options: Collection[str],
) -> Iterator[str]:
    """Yield changes of settings that reduce memory."""
    size, steps = args.train_batch_size, args.gradient_accumulation_steps
    if batch and batch.budget and len(batch.sample_ids) > 1:
        yield f"`tokens_per_device` {max(batch.tokens // 2, 1)}, which trains the same"
    elif batch and not batch.budget and size > 1:
        smaller = next(divisor for divisor in range(size // 2, 0, -1) if size % divisor == 0)
        yield (
            f"`per_device_train_batch_size` {size} → {smaller} with `gradient_accumulation_steps` {steps} → "
            f"{steps * size // smaller}, which trains the same"
        )
    if batch and compute.gradient_checkpointing is not True:
        yield "`gradient_checkpointing: true`, for one more forward pass"
    if compute.precision == "float32" and args.device.type != "cpu":
        yield "`dtype: bfloat16`"
    if adapters.method == "full":
        yield "`method: lora`"
        if "zero3" in options and sharding(os.environ) not in ("zero3", "fsdp"):
            yield "a launch with configs/accelerate/zero3.yaml on several GPUs"
    elif adapters.method == "lora" and "qlora" in options:
        yield "`method: qlora`"

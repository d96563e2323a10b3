"""The global batch: what one optimiser step reads, however it is divided among processes and accumulated batches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from reflectune.core.errors import UserError
from reflectune.train.runs.checkpoints import recorded_settings


@dataclass(frozen=True)
class GlobalBatch:
    """How many examples an optimiser step reads: the product of three numbers.

    Attributes:
        per_device: Examples of one batch of one process.
        accumulation: Batches of a process in one optimiser step.
        processes: How many there are.
    """

    per_device: int
    accumulation: int
    processes: int

    @property
    def size(self) -> int:
        """Examples of one optimiser step."""
        return self.per_device * self.accumulation * self.processes

    @property
    def at_a_time(self) -> int:
        """Examples that all processes read together before the epoch can end: their batches, if there are several."""
        return self.per_device * self.processes if self.processes > 1 else 1

    def divided(self, size: int) -> GlobalBatch | None:
        """These processes with a global batch of `size`, in batches no larger; None if they can't divide it evenly."""
        process_batch, rest = divmod(size, self.processes)
        if rest:
            return None
        per_device = max(
            count for count in range(1, min(self.per_device, process_batch) + 1) if process_batch % count == 0
        )
        return GlobalBatch(per_device, process_batch // per_device, self.processes)

    def settings(self, why_fixed: str) -> dict[str, int]:
        """What of it determines the weights: the product, or all three if they are fixed for a reason."""
        parts = {
            "per_device_train_batch_size": self.per_device,
            "gradient_accumulation_steps": self.accumulation,
            "processes": self.processes,
        }
        return {"global_batch": self.size, **(parts if why_fixed else {})}


def why_fixed(model: PreTrainedModel, lora_dropout: float, sharding: str) -> str:
    """Why a run can't go on with another number of processes; "" if it can.

    Without dropout nothing in a step is random, the order of the data depends on the global batch alone, and the loss
    is a mean over its tokens: the processes may then change, and only the order in which floats are added does.

    Args:
        model: The model to train, before it gets adapters.
        lora_dropout: Of the adapters, if it gets any.
        sharding: What the launch divides among the processes (see `reflectune.train.runs.launch`).
    """
    if sharding:
        return f"under {sharding} each process writes and reads a part of a checkpoint of its own"
    if lora_dropout or _has_dropout(model):
        return "with dropout each process draws random numbers of its own, so that another number of them trains others"
    return ""


def refuse_other_batch(output_dir: str | Path, batch: GlobalBatch, why_fixed: str) -> None:
    """Raise a `UserError` if the run in a folder has another global batch, or processes that are fixed for a reason."""
    there = recorded_settings(output_dir)
    if there is None:
        return
    wanted = there.get("global_batch", batch.size)
    if wanted != batch.size:
        raise UserError(
            f"{output_dir} holds a run whose optimiser steps read {wanted} examples; `per_device_train_batch_size` "
            f"{batch.per_device} x `gradient_accumulation_steps` {batch.accumulation} x {batch.processes} process(es) "
            f"would be {batch.size}. {_advice(batch, wanted)}, or choose another `output_dir`"
        )
    if why_fixed and there.get("processes", batch.processes) != batch.processes:
        raise UserError(
            f"{output_dir} holds a run of {there['processes']} process(es), and {batch.processes} were started: "
            f"{why_fixed}. Start {there['processes']}, or choose another `output_dir`"
        )


def _advice(batch: GlobalBatch, wanted: int) -> str:
    fitting = batch.divided(wanted)
    if fitting is None:
        counts = ", ".join(str(count) for count in range(1, wanted + 1) if wanted % count == 0)
        return f"{wanted} can't be shared by {batch.processes} processes: start as many as divide it ({counts})"
    return (
        f"With {fitting.processes} process(es) set `per_device_train_batch_size: {fitting.per_device}` and "
        f"`gradient_accumulation_steps: {fitting.accumulation}`"
    )


def _has_dropout(model: PreTrainedModel) -> bool:
    layers = any(isinstance(module, nn.Dropout) and module.p > 0 for module in model.modules())
    return layers or any(value > 0 for value in _rates(model.config.to_dict()))


def _rates(config: Mapping[Any, Any]) -> Iterator[float]:
    """The dropout rates that a model's config names, its towers' included."""
    for name, value in config.items():
        if isinstance(value, Mapping):
            yield from _rates(value)
        elif str(name).endswith("dropout") and isinstance(value, (int, float)):
            yield value

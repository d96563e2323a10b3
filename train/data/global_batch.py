"""The global batch: the examples of one optimiser step, over all processes and accumulated batches."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from reflectune.core.errors import UserError


@dataclass(frozen=True)
class GlobalBatch:
    """The number of examples of an optimiser step, as a product of three.

    Attributes:
        per_device: Examples of one batch of one process.
        accumulation: Batches of a process in one optimiser step.
        processes: Processes of the launch.
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
        """Examples that all processes read at a time; an epoch must be a multiple. 1 for a single process."""
        return self.per_device * self.processes if self.processes > 1 else 1

    def steps(self, examples: int, epochs: float) -> int:
        """Return the optimiser steps of a run; the last step of an epoch may have fewer examples."""
        batches = math.ceil(examples / (self.per_device * self.processes))
        return math.ceil(epochs * math.ceil(batches / self.accumulation))

    def settings(self, why_fixed: str) -> dict[str, int]:
        """Return the settings that determine the weights: the product, and all three factors if they are fixed."""
        factors = {
            "per_device_train_batch_size": self.per_device,
            "gradient_accumulation_steps": self.accumulation,
            "processes": self.processes,
        }
        return {"global_batch": self.size, **(factors if why_fixed else {})}


def why_fixed(model: PreTrainedModel, lora_dropout: float, sharding: str) -> str:
    """Return why a run can't continue with a different number of processes; "" if it can.

    The global batch must not change. It may be divided differently unless each process has its own state: then only the
    order of float additions changes.

    Args:
        model: The model to train, before it gets adapters.
        lora_dropout: Dropout of the adapters, if it gets any.
        sharding: Kind of sharding (see `reflectune.train.runs.launch`).
    """
    if sharding:
        return f"under {sharding} each process writes and reads its own part of a checkpoint"
    if lora_dropout or _has_dropout(model):
        return (
            "with dropout each process draws its own random numbers, so the weights depend on the number of processes"
        )
    return ""


def refuse_other_batch(
    output_dir: str | Path, recorded: Mapping[str, Any] | None, batch: GlobalBatch, why_fixed: str
) -> None:
    """Raise a `UserError` if the run in a folder has a different global batch or, if fixed, process count.

    Args:
        recorded: Settings of the run in that folder; None if there is none.
        batch: The batch of this launch.
        why_fixed: Result of the function `why_fixed`.
    """
    if recorded is None:
        return
    expected = recorded["global_batch"]
    if expected != batch.size:
        raise UserError(
            f"{output_dir} holds a run whose optimiser steps read {expected} examples; `per_device_train_batch_size` "
            f"{batch.per_device} x `gradient_accumulation_steps` {batch.accumulation} x {batch.processes} process(es) "
            f"would be {batch.size}. Choose factors whose product is {expected}, or another `output_dir`"
        )
    if why_fixed and recorded.get("processes", batch.processes) != batch.processes:
        raise UserError(
            f"{output_dir} holds a run of {recorded['processes']} process(es), and {batch.processes} were started: "
            f"{why_fixed}. Start {recorded['processes']}, or choose another `output_dir`"
        )


def _has_dropout(model: PreTrainedModel) -> bool:
    layers = any(isinstance(module, nn.Dropout) and module.p > 0 for module in model.modules())
    return layers or any(value > 0 for value in _dropout_rates(model.config.to_dict()))


def _dropout_rates(config: Mapping[Any, Any]) -> Iterator[float]:
    for name, value in config.items():
        if isinstance(value, Mapping):
            yield from _dropout_rates(value)
        elif str(name).endswith("dropout") and isinstance(value, (int, float)):
            yield value

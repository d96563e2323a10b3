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
        """Examples that an epoch must be a multiple of: one batch of each process, if there are several."""
        return self.per_device * self.processes if self.processes > 1 else 1

    def steps(self, examples: int, epochs: float) -> int:
        """Return the optimiser steps of a run; the last step of an epoch may be a short one."""
        batches = math.ceil(examples / (self.per_device * self.processes))
        return math.ceil(epochs * math.ceil(batches / self.accumulation))

    def settings(self, why_fixed: str) -> dict[str, int]:
        """Return the numbers that determine the weights: the product, or all three if they are fixed for a reason."""
        factors = {
            "per_device_train_batch_size": self.per_device,
            "gradient_accumulation_steps": self.accumulation,
            "processes": self.processes,
        }
        return {"global_batch": self.size, **(factors if why_fixed else {})}


def why_fixed(model: PreTrainedModel, lora_dropout: float, sharding: str) -> str:
    """Return the reason why a run can't continue with another number of processes; "" if it can.

    The global batch must stay as it is in any case. It may be divided differently unless each process has its own
    state; then only the order in which floats are added changes.

    Args:
        model: The model to train, before it gets adapters.
        lora_dropout: Dropout of the adapters, if it gets any.
        sharding: Kind of sharding (see `reflectune.train.runs.launch`).
    """
    if sharding:
        return f"under {sharding} each process writes and reads a part of a checkpoint of its own"
    if lora_dropout or _has_dropout(model):
        return "with dropout each process draws random numbers of its own, so that another number of them trains others"
    return ""


def refuse_other_batch(
    output_dir: str | Path, recorded: Mapping[str, Any] | None, batch: GlobalBatch, why_fixed: str
) -> None:
    """Raise a `UserError` if the run in a folder has another global batch, or other processes than it must have.

    Args:
        recorded: Settings of the run in that folder; None if there is none.
        batch: The batch of this launch.
        why_fixed: From the function of this name.
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

"""What to change when a run does not fit into memory, and what it would then take, by the estimate."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from torch import nn

from reflectune.models.attention.positions import inner_model
from reflectune.train.forecasting.forecast import Forecast, passing
from reflectune.train.forecasting.memory import in_words, planned_weights, total
from reflectune.train.settings.training import TrainingConfig
from reflectune.train.setup.launch import Division

_HEADROOM = 0.85
"""The share of memory that a suggested batch may take: the estimate was wrong already, or memory is in pieces."""
_MANY = 8
"""Devices that a suggestion to divide the model names, if there is one alone."""


def suggestions(config: TrainingConfig, model: nn.Module, found: Forecast, available: int) -> list[str]:
    """Changes that need less memory, each with what it would take.

    Args:
        config: The run's.
        model: Its model, not wrapped.
        found: The forecast of the batch that did not fit.
        available: Bytes of the device's memory.
    """
    now = total(found.parts())
    ways = [*_smaller_batch(config, found, min(available, now)), *_other_settings(config, model, found)]
    return [f"{way}: about {in_words(needed)}" for way, needed in ways if needed < now]


def _smaller_batch(config: TrainingConfig, found: Forecast, available: int) -> Iterator[tuple[str, int]]:
    """The largest part of the batch that fits, as often as makes the same batch of an optimiser step."""
    size, steps = config.per_device_train_batch_size, config.gradient_accumulation_steps
    parts = [part for part in range(size - 1, 0, -1) if size % part == 0]
    if not parts:
        return
    taken = {part: total(replace(found, batch=found.batch.times(part / size)).parts()) for part in parts}
    chosen = next((part for part in parts if taken[part] <= _HEADROOM * available), 1)
    yield (
        f"`per_device_train_batch_size` {size} → {chosen} with `gradient_accumulation_steps` {steps} → "
        f"{steps * size // chosen}, which trains the same",
        taken[chosen],
    )


def _other_settings(config: TrainingConfig, model: nn.Module, found: Forecast) -> Iterator[tuple[str, int]]:
    if not config.gradient_checkpointing:
        again = replace(found, passing=replace(found.passing, checkpointing=True))
        yield "`gradient_checkpointing: true`, for one more forward pass", total(again.parts())
    if config.dtype == "float32" and found.accelerator:
        yield "`dtype: bfloat16`", total(_changed(replace(config, dtype="bfloat16"), found).parts())
    if config.method == "full":
        adapters = replace(config, method="lora")
        weights = planned_weights(inner_model(model), adapters)
        yield "`method: lora`", total(replace(_changed(adapters, found), weights=weights).parts())
        if found.division.kind != "zero3":
            processes = found.division.processes if found.division.processes > 1 else _MANY
            divided = Division("zero3", processes)
            launch = f"a launch with configs/accelerate/zero3.yaml on {processes} GPUs"
            yield launch, total(_changed(config, replace(found, division=divided)).parts())
    elif config.method == "lora":
        inside = _language_weights(model)
        weights = replace(found.weights, quantized=inside, frozen=found.weights.frozen - inside, double=True)
        yield "`method: qlora`", total(replace(found, weights=weights).parts())


def _changed(config: TrainingConfig, found: Forecast) -> Forecast:
    device = "cuda" if found.accelerator else "cpu"
    return replace(
        found, passing=passing(config, found.division, found.architecture, device, found.weights.frozen_bytes)
    )


def _language_weights(model: nn.Module) -> int:
    """Weights that four bits would hold: the frozen matrices of the language model's layers."""
    return sum(
        parameter.numel()
        for name, parameter in model.named_parameters()
        if "language_model" in name and ".layers." in name and parameter.dim() == 2 and not parameter.requires_grad
    )

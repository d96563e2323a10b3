"""What to change when a run does not fit into memory, and what it would then take, by the estimate."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from torch import nn

from reflectune.models.attention.positions import inner_model
from reflectune.train.estimates.forecast import Forecast, passing
from reflectune.train.estimates.memory import Division, in_words, planned_weights, total
from reflectune.train.settings.training import TrainingConfig

_HEADROOM = 0.85
"""The share of memory that a suggested batch may take: the estimate was wrong already, or memory is in pieces."""
_MANY = 8
"""Devices that a suggestion to divide the model names, if there is one alone."""


def suggestions(config: TrainingConfig, model: nn.Module, forecast: Forecast, available: int) -> list[str]:
    """Changes that need less memory, each with what it would take.

    Args:
        config: The run's.
        model: Its model, not wrapped.
        forecast: The forecast of the batch that did not fit.
        available: Bytes of the device's memory.
    """
    now = total(forecast.parts())
    ways = [*_smaller_batch(config, forecast, min(available, now)), *_other_settings(config, model, forecast)]
    return [f"{way}: about {in_words(needed)}" for way, needed in ways if needed < now]


def _smaller_batch(config: TrainingConfig, forecast: Forecast, available: int) -> Iterator[tuple[str, int]]:
    """The largest batch per device that fits, accumulated so that an optimiser step reads as many questions as now."""
    size, steps = config.per_device_train_batch_size, config.gradient_accumulation_steps
    parts = [part for part in range(size - 1, 0, -1) if size % part == 0]
    if not parts:
        return
    taken = {part: total(replace(forecast, batch=forecast.batch.times(part / size)).parts()) for part in parts}
    chosen = next((part for part in parts if taken[part] <= _HEADROOM * available), 1)
    yield (
        f"`per_device_train_batch_size` {size} → {chosen} with `gradient_accumulation_steps` {steps} → "
        f"{steps * size // chosen}, which trains the same",
        taken[chosen],
    )


def _other_settings(config: TrainingConfig, model: nn.Module, forecast: Forecast) -> Iterator[tuple[str, int]]:
    if not config.gradient_checkpointing:
        again = replace(forecast, passing=replace(forecast.passing, checkpointing=True))
        yield "`gradient_checkpointing: true`, for one more forward pass", total(again.parts())
    if config.dtype == "float32" and forecast.accelerator:
        yield "`dtype: bfloat16`", total(_changed(config.model_copy(update={"dtype": "bfloat16"}), forecast).parts())
    if config.method == "full":
        adapters = config.model_copy(update={"method": "lora"})
        weights = planned_weights(inner_model(model), adapters)
        yield "`method: lora`", total(replace(_changed(adapters, forecast), weights=weights).parts())
        if forecast.division.kind != "zero3":
            processes = forecast.division.processes if forecast.division.processes > 1 else _MANY
            divided = Division("zero3", processes)
            launch = f"a launch with configs/accelerate/zero3.yaml on {processes} GPUs"
            yield launch, total(_changed(config, replace(forecast, division=divided)).parts())
    elif config.method == "lora":
        inside = _language_weights(model)
        weights = replace(forecast.weights, quantized=inside, frozen=forecast.weights.frozen - inside, double=True)
        yield "`method: qlora`", total(replace(forecast, weights=weights).parts())


def _changed(config: TrainingConfig, forecast: Forecast) -> Forecast:
    device = "cuda" if forecast.accelerator else "cpu"
    return replace(
        forecast,
        passing=passing(config, forecast.division, forecast.architecture, device, forecast.weights.frozen_bytes),
    )


def _language_weights(model: nn.Module) -> int:
    """Weights that four bits would hold: the frozen matrices of the language model's layers."""
    return sum(
        parameter.numel()
        for name, parameter in model.named_parameters()
        if "language_model" in name and ".layers." in name and parameter.dim() == 2 and not parameter.requires_grad
    )

"""Changes of settings that need less memory, each with the estimated total."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from torch import nn

from reflectune.models.attention.positions import inner_model
from reflectune.train.data.global_batch import GlobalBatch
from reflectune.train.estimates.forecast import Forecast, forward_pass
from reflectune.train.estimates.memory import Division, in_words, planned_weights, total
from reflectune.train.settings.model import AdapterConfig
from reflectune.train.settings.training import ComputeConfig

_HEADROOM = 0.85
"""The share of memory that a suggested batch may take: the estimate was wrong already, or memory is fragmented."""
_GPUS = 8
"""GPUs of a suggested launch, if the run has one."""


def suggestions(
    adapters: AdapterConfig,
    compute: ComputeConfig,
    batch: GlobalBatch,
    model: nn.Module,
    forecast: Forecast,
    available: int,
) -> list[str]:
    """Return changes that need less memory, each with its estimated total.

    Args:
        adapters: The weights that train.
        compute: Precision and checkpointing.
        batch: The global batch.
        model: The model, not wrapped.
        forecast: Forecast of the batch that did not fit.
        available: Bytes of the device's memory.
    """
    now = total(forecast.parts())
    changes = [
        *_smaller_batch(batch, forecast, min(available, now)),
        *_other_settings(adapters, compute, model, forecast),
    ]
    return [f"{change}: about {in_words(needed)}" for change, needed in changes if needed < now]


def _smaller_batch(batch: GlobalBatch, forecast: Forecast, available: int) -> Iterator[tuple[str, int]]:
    """Yield the largest batch per device that fits, accumulated to the same global batch."""
    size, steps = batch.per_device, batch.accumulation
    divisors = [divisor for divisor in range(size - 1, 0, -1) if size % divisor == 0]
    if not divisors:
        return
    needed = {count: total(replace(forecast, batch=forecast.batch.times(count / size)).parts()) for count in divisors}
    chosen = next((count for count in divisors if needed[count] <= _HEADROOM * available), 1)
    yield (
        f"`per_device_train_batch_size` {size} → {chosen} with `gradient_accumulation_steps` {steps} → "
        f"{steps * size // chosen}, which trains the same",
        needed[chosen],
    )


def _other_settings(
    adapters: AdapterConfig, compute: ComputeConfig, model: nn.Module, forecast: Forecast
) -> Iterator[tuple[str, int]]:
    if not compute.gradient_checkpointing:
        again = replace(forecast, forward=replace(forecast.forward, checkpointing=True))
        yield "`gradient_checkpointing: true`, for one more forward pass", total(again.parts())
    if compute.dtype == "float32" and forecast.accelerator:
        half = compute.model_copy(update={"dtype": "bfloat16"})
        yield "`dtype: bfloat16`", total(_changed(adapters, half, forecast).parts())
    if adapters.method == "full":
        lora = adapters.model_copy(update={"method": "lora"})
        weights = planned_weights(inner_model(model), lora, compute.dtype)
        yield "`method: lora`", total(replace(_changed(lora, compute, forecast), weights=weights).parts())
        if forecast.division.kind != "zero3":
            processes = forecast.division.processes if forecast.division.processes > 1 else _GPUS
            divided = replace(forecast, division=Division("zero3", processes))
            launch = f"a launch with configs/accelerate/zero3.yaml on {processes} GPUs"
            yield launch, total(_changed(adapters, compute, divided).parts())
    elif adapters.method == "lora":
        inside = _language_weights(model)
        weights = replace(forecast.weights, quantized=inside, frozen=forecast.weights.frozen - inside, double=True)
        yield "`method: qlora`", total(replace(forecast, weights=weights).parts())


def _changed(adapters: AdapterConfig, compute: ComputeConfig, forecast: Forecast) -> Forecast:
    device, frozen_bytes = "cuda" if forecast.accelerator else "cpu", forecast.weights.frozen_bytes
    forward = forward_pass(adapters, compute, forecast.division, forecast.architecture, device, frozen_bytes)
    return replace(forecast, forward=forward)


def _language_weights(model: nn.Module) -> int:
    """Count the weights that four bits would hold: frozen matrices of the language model's layers."""
    return sum(
        parameter.numel()
        for name, parameter in model.named_parameters()
        if "language_model" in name and ".layers." in name and parameter.dim() == 2 and not parameter.requires_grad
    )

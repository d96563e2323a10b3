"""The forecast of a run's memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from reflectune.models.attention.attention import has_backward
from reflectune.models.attention.images import content_key
from reflectune.train.data.examples import EncodedExample
from reflectune.train.data.micro_batches import tokens_of
from reflectune.train.estimates.activations import BatchSize, ForwardPass, activations
from reflectune.train.estimates.architecture import Architecture
from reflectune.train.estimates.memory import Division, MemoryItem, WeightCounts, format_bytes, memory, total
from reflectune.train.settings.model import AdapterConfig
from reflectune.train.settings.training import ComputeConfig

_SPARSEST = 4
"""Largest n, if every n-th layer has to be computed again."""
_SHARE = 0.9
"""Share of a device's memory that a forecast may take; the rest is for its error, and fragmentation."""


@dataclass(frozen=True)
class Forecast:
    """The quantities that decide a run's memory.

    Attributes:
        weights: Weights of the model.
        architecture: Shapes of the model.
        batch: The largest batch of one forward pass.
        forward: Settings of the forward pass.
        division: Division of the run among processes.
        accelerator: True if the device is one.
        available: Bytes of the device's memory, if they are known.
        feature_bytes: Bytes of an image's cached features; 0 if none are cached.
    """

    weights: WeightCounts
    architecture: Architecture
    batch: BatchSize
    forward: ForwardPass
    division: Division
    accelerator: bool
    available: int | None
    feature_bytes: int = 0

    def parts(self) -> list[MemoryItem]:
        """List the memory of each device at the peak of a step."""
        kept = activations(self.architecture, self.batch, self.forward)
        return memory(self.weights, kept, self.division, self.forward.compute, accelerator=self.accelerator)


def forecast(
    adapters: AdapterConfig,
    compute: ComputeConfig,
    architecture: Architecture,
    weights: WeightCounts,
    batch: BatchSize,
    division: Division,
    device: str,
    available: int | None,
) -> Forecast:
    """Make the forecast of a run.

    Args:
        adapters: The weights that train.
        compute: Precision, and the layers that are computed again; `auto` is resolved.
        architecture: Shapes of the model.
        weights: Weights of the model.
        batch: The largest batch.
        division: Division of the run among processes.
        device: Type of the device: `cpu`, `cuda`, ….
        available: Bytes of the device's memory, if they are known.
    """
    size = 2 if compute.precision == "bfloat16" else 4
    full, decoder_trains = adapters.method == "full", "language_model" in adapters.trained_towers
    held = 4 if decoder_trains else weights.frozen_bytes
    forward = ForwardPass(
        compute=size,
        residual=held if full and not division.kind else size,
        adapters=adapters.lora_r if not full else None if decoder_trains else 0,
        dropout=adapters.adapters_dropout > 0,
        trains_vision="vision_tower" in adapters.trained_towers,
        recomputed=1 if compute.gradient_checkpointing else 0,
        attention=attention_of_trees(compute, device, architecture.head_size),
    )
    made = Forecast(weights, architecture, batch, forward, division, device != "cpu", available)
    if compute.gradient_checkpointing != "auto":
        return made
    return replace(made, forward=replace(forward, recomputed=least_recomputation(made)))


def attention_of_trees(compute: ComputeConfig, device: str, head_size: int) -> Literal["parts", "packed", "dense"]:
    """Return the way in which a device reads trees; a GPU's trial of FlexAttention is taken to succeed."""
    if device == "cuda" and compute.compile != "off":
        return "packed"
    dtype = torch.bfloat16 if compute.precision == "bfloat16" else torch.float32
    return "parts" if has_backward(device, dtype, head_size) else "dense"


def least_recomputation(predicted: Forecast) -> int:
    """Return n, so that a run fits into its device's memory if every n-th layer is computed again; 0 for no layer.

    1 if the memory isn't known, or too small.
    """
    if predicted.available is None:
        return 1
    for every in (0, *range(_SPARSEST, 1, -1)):
        forward = replace(predicted.forward, recomputed=every)
        if total(replace(predicted, forward=forward).parts()) <= _SHARE * predicted.available:
            return every
    return 1


def recomputation_line(predicted: Forecast) -> str:
    """Say which layers are computed again in the backward pass, and why."""
    every = predicted.forward.recomputed
    layers = {0: "no layer is", 1: "every layer is"}.get(every, f"one of {every} layers is")
    known = f"of {format_bytes(predicted.available)}" if predicted.available else "of a memory that isn't known"
    return f"{layers} recomputed: the forecast is {format_bytes(total(predicted.parts()))}, {known}"


def device_memory(device: torch.device) -> int | None:
    """Return the bytes of an accelerator's memory; None for a CPU."""
    if device.type == "cpu":
        return None
    return int(torch.accelerator.get_memory_info(device)[1])


def largest_batch(examples: Sequence[EncodedExample], size: int, patch_size: int) -> BatchSize:
    """Return the size of the batch of the `size` longest questions, scaled up if there are fewer examples."""
    longest = sorted(examples, key=tokens_of)[-size:]
    trees = [tree for example in longest for tree in example.trees]
    batch = BatchSize(
        tokens=sum(tree.length for tree in trees),
        longest=max(tree.length for tree in trees),
        supervised=sum(tree.supervised for tree in trees),
        patches=sum({content_key(tree.vision): patches(tree.vision, patch_size) for tree in trees}.values()),
        trees=len(trees),
    )
    return batch.times(size / len(longest))


def patches(vision: Mapping[str, Any], patch_size: int) -> int:
    """Count the patches that the vision tower reads: rows of Qwen's pixels, squares of LLaVA's images or tiles.

    An image with cached features has none.
    """
    pixels: Tensor | None = vision.get("pixel_values")
    if pixels is None:
        return 0
    if pixels.dim() == 2:
        return len(pixels)
    return pixels.shape[:-3].numel() * (pixels.shape[-1] // patch_size) * (pixels.shape[-2] // patch_size)

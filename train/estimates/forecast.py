"""What a run will take, before it takes it: memory on each device, and how long a step lasts."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from reflectune.models.attention.attention import has_backward
from reflectune.models.attention.collation import loss_terms
from reflectune.models.attention.pictures import content_key
from reflectune.models.attention.positions import inner_model
from reflectune.models.attention.tree import Tree
from reflectune.train.data.examples import Collator, EncodedExample
from reflectune.train.estimates.activations import Activations, BatchSize, ForwardPass, activations
from reflectune.train.estimates.architecture import Architecture
from reflectune.train.estimates.memory import Division, MemoryItem, WeightCounts, memory, weights_of
from reflectune.train.settings.training import TrainingConfig

_LONG = 5.0
"""Seconds of a batch that is not timed a second time."""


@dataclass(frozen=True)
class Forecast:
    """Everything that decides what a run holds in memory.

    Attributes:
        weights: The model's.
        architecture: Its widths.
        batch: The largest batch of one forward pass.
        passing: How it is read.
        division: Among how many processes, and what of it.
        accelerator: Whether the device is one.
        available: Its bytes of memory, if they are known.
        feature_bytes: Of what is cached of a picture on the disk; 0 if nothing is.
    """

    weights: WeightCounts
    architecture: Architecture
    batch: BatchSize
    passing: ForwardPass
    division: Division
    accelerator: bool
    available: int | None
    feature_bytes: int = 0

    def activations(self) -> Activations:
        """Of the largest batch."""
        return activations(self.architecture, self.batch, self.passing)

    def parts(self) -> list[MemoryItem]:
        """What each device holds at the peak of a step."""
        compute = self.passing.compute
        return memory(self.weights, self.activations(), self.division, compute, accelerator=self.accelerator)


def forecast(
    config: TrainingConfig, model: nn.Module, batch: BatchSize, device: torch.device, divided: Division
) -> Forecast:
    """Of a run whose model is ready to train."""
    architecture = Architecture.of(inner_model(model).config)
    weights = weights_of(model, double=config.double_quantization)
    return Forecast(
        weights,
        architecture,
        batch,
        passing(config, divided, architecture, device.type, weights.frozen_bytes),
        divided,
        accelerator=device.type != "cpu",
        available=memory_of(device),
    )


def passing(
    config: TrainingConfig, divided: Division, architecture: Architecture, device: str, frozen_bytes: int
) -> ForwardPass:
    """How a run's forward passes are made.

    Args:
        config: The run's.
        divided: Among how many processes, and what of it.
        architecture: The model's widths.
        device: Where: `cpu`, `cuda`, ….
        frozen_bytes: Of a weight that doesn't train.
    """
    compute = 2 if config.dtype == "bfloat16" else 4
    full, decoder_trains = config.method == "full", "language_model" in config.trained_towers
    held = 4 if decoder_trains else frozen_bytes
    return ForwardPass(
        compute=compute,
        residual=held if full and not divided.kind else compute,
        adapters=config.lora_r if not full else None if decoder_trains else 0,
        dropout=config.adapters_dropout > 0,
        trains_vision="vision_tower" in config.trained_towers,
        checkpointing=config.gradient_checkpointing,
        by_parts=has_backward(device, torch.bfloat16 if compute == 2 else torch.float32, architecture.head_size),
    )


def memory_of(device: torch.device) -> int | None:
    """Bytes of an accelerator's memory; None for a CPU."""
    if device.type == "cpu":
        return None
    return int(torch.accelerator.get_memory_info(device)[1])


def largest_batch(examples: Sequence[EncodedExample], size: int, patch_size: int) -> BatchSize:
    """The batch of the `size` questions with the most tokens; scaled up where there are fewer examples."""
    longest = sorted(examples, key=_length)[-size:]
    batch = batch_of([tree for example in longest for tree in example.trees], patch_size)
    return batch.times(size / len(longest))


def batch_of(trees: Sequence[Tree], patch_size: int) -> BatchSize:
    """What one forward pass over trees reads."""
    return BatchSize(
        tokens=sum(tree.length for tree in trees),
        longest=max(tree.length for tree in trees),
        supervised=sum(tree.supervised for tree in trees),
        patches=sum({content_key(tree.vision): patches(tree.vision, patch_size) for tree in trees}.values()),
        trees=len(trees),
    )


def patches(vision: Mapping[str, Any], patch_size: int) -> int:
    """Patches that the vision tower reads: rows of Qwen's pixels; of LLaVA's pictures, tile by tile, squares.

    None of a picture whose features are cached.
    """
    pixels: Tensor | None = vision.get("pixel_values")
    if pixels is None:
        return 0
    if pixels.dim() == 2:
        return len(pixels)
    return pixels.shape[:-3].numel() * (pixels.shape[-1] // patch_size) * (pixels.shape[-2] // patch_size)


def seconds_of_batch(
    config: TrainingConfig,
    model: nn.Module,
    examples: Sequence[EncodedExample],
    device: torch.device,
    *,
    in_half: bool = False,
) -> float | None:
    """Seconds of the forward and backward pass of a batch of middling length; its gradients are dropped.

    Args:
        config: The run's.
        model: Ready to train; it is moved to the device, and not to be trained afterwards.
        examples: A sample.
        device: Where to read it.
        in_half: Whether all weights are held in `dtype`, as DeepSpeed does.

    Returns:
        None if the batch doesn't fit into memory.
    """
    size = min(config.per_device_train_batch_size, len(examples))
    start = (len(examples) - size) // 2
    chosen = sorted(examples, key=_length)[start : start + size]
    if config.gradient_checkpointing:
        inner_model(model).activation_checkpointing_enable({"use_reentrant": False})
    batch = Collator(inner_model(model))(chosen)
    inputs = {name: value.to(device) for name, value in batch.items() if isinstance(value, Tensor)}
    try:
        model.to(device)
        if in_half and config.method == "full" and config.dtype == "bfloat16":
            model.to(torch.bfloat16)
        seconds = _timed(model, inputs, device, config.dtype)
        return seconds if seconds > _LONG else min(seconds, _timed(model, inputs, device, config.dtype))
    except torch.OutOfMemoryError:
        return None


def _timed(model: nn.Module, inputs: Mapping[str, Any], device: torch.device, dtype: str) -> float:
    began = time.perf_counter()
    with torch.autocast(device.type, torch.bfloat16, enabled=dtype == "bfloat16"):
        loss, weight = loss_terms(model, inputs)
    (loss / weight).backward()
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
    model.zero_grad(set_to_none=True)
    return time.perf_counter() - began


def _length(example: EncodedExample) -> int:
    return sum(tree.length for tree in example.trees)

"""Memory of a training run on each device: weights counted, the bytes made of the counts, and their table.

ZeRO (arXiv 1910.02054, figure 1) and FSDP shard weights, gradients and optimiser states. DeepSpeed's (0.19) buffers are
the defaults of `DeepSpeedZeroConfig`. Gradients are accumulated and sent in float32.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn
from transformers import PreTrainedModel

from reflectune.train.estimates.activations import Activations
from reflectune.train.settings.model import AdapterConfig
from reflectune.train.weights.parameters import freeze_all_but, parameter_count, projector_modules

GIB = 2**30
CONTEXT = GIB
"""Bytes of an accelerator's context and its kernels' workspaces. Assumed."""

BLOCK, SCALES_BLOCK = 64, 256
"""Weights that share a scale in four bits, and scales that share one (double quantization of bitsandbytes)."""
_BUCKET = int(5e8)
"""DeepSpeed's `reduce_bucket_size`: gradients that are sent at once."""
_LIVE, _PREFETCHED = int(1e9), int(5e7)
"""DeepSpeed's `stage3_max_live_parameters` and `stage3_prefetch_bucket_size`: weights that ZeRO-3 keeps whole."""
_IN_LAYER = re.compile(r"\.(?:layers|blocks)\.\d+\.")
_FIRST_LAYER = re.compile(r"language_model\..*\blayers\.0\.")
NEW_TOKENS = 4
"""Reflection tokens of a scheme."""
_DIVIDE_GRADIENTS = ("zero2", "zero3", "fsdp")
_DIVIDE_STATES = ("zero1", "zero2", "zero3", "fsdp")


@dataclass(frozen=True)
class Division:
    """The division of a run among processes.

    Attributes:
        kind: `zero1`, `zero2`, `zero3`, `fsdp`, or "" for none; see `reflectune.train.runs.launch.sharding`.
        processes: Number of processes.
        offloads_optimizer: True if gradients and optimiser states are in the CPU's memory.
        offloads_weights: True if weights are.
    """

    kind: str
    processes: int
    offloads_optimizer: bool = False
    offloads_weights: bool = False


@dataclass(frozen=True)
class WeightCounts:
    """The weights of a model, counted.

    Attributes:
        trained: Trained weights, kept in float32.
        frozen: Frozen weights, without those in four bits.
        frozen_bytes: Bytes of a frozen weight.
        quantized: Weights in four bits.
        layer: Weights of one decoder layer.
        outside: Weights outside of all layers: embedding, head, projector.
    """

    trained: int
    frozen: int
    frozen_bytes: int
    quantized: int
    layer: int
    outside: int


@dataclass(frozen=True)
class MemoryItem:
    """A line of the table: its name, its bytes on each device, and their explanation."""

    name: str
    bytes: int
    why: str


def nf4_bytes(weights: int) -> int:
    """Return bytes of weights in NF4 with their scales (arXiv 2305.14314, §3): 0.5 + 0.0159 a weight."""
    scales = -(-weights // BLOCK)
    return weights // 2 + scales + 4 * -(-scales // SCALES_BLOCK)


def memory(
    weights: WeightCounts, activations: Activations, division: Division, compute: int, *, accelerator: bool
) -> list[MemoryItem]:
    """List the memory of each device at the peak of a step.

    Args:
        weights: Weights of the model.
        activations: Activations of the largest batch.
        division: Division of the run.
        compute: Bytes of a number in products: 2 in bfloat16, 4 in float32.
        accelerator: True if the device is one, whose context takes memory too.
    """
    parts = [
        *_weights(weights, division, compute),
        *_training(weights, division, compute),
        *_buffers(weights, division, compute),
        MemoryItem("activations", activations.kept, "kept for the backward pass"),
        MemoryItem("working", activations.working, "a layer computed again, if any, and its gradients"),
        MemoryItem("logits", activations.logits, "of supervised tokens, with their loss and gradient"),
        MemoryItem("context", CONTEXT if accelerator else 0, "of the accelerator and its kernels, assumed"),
    ]
    return [part for part in parts if part.bytes]


def total(parts: Iterable[MemoryItem]) -> int:
    """Sum the bytes."""
    return sum(part.bytes for part in parts)


def table(parts: Iterable[MemoryItem], available: int | None) -> list[str]:
    """Format the parts and their sum as lines, with a verdict if the available memory is known."""
    parts = list(parts)
    verdict = "no accelerator here to compare with"
    if available is not None:
        verdict = f"{'fits' if total(parts) <= available else 'does not fit'} into {format_bytes(available)}"
    rows = [*parts, MemoryItem("sum", total(parts), verdict)]
    return [f"  {row.name:<12} {format_bytes(row.bytes):>10}  {row.why}" for row in rows]


def format_bytes(count: int) -> str:
    """Format bytes as GiB, or as MiB if there are few."""
    return f"{count / GIB:,.1f} GiB" if count >= GIB else f"{count / 2**20:,.1f} MiB"


def _weights(weights: WeightCounts, division: Division, compute: int) -> list[MemoryItem]:
    if division.offloads_weights:
        return []
    kept = [MemoryItem("weights", nf4_bytes(weights.quantized), "in 4 bits, with their scales")]
    if division.kind.startswith("zero"):
        whole = compute * (weights.trained + weights.frozen)
        return [*kept, _divided("weights", whole, f"in {_named(compute)}", division, ("zero3",))]
    for count, size, kind in ((weights.trained, 4, "that train"), (weights.frozen, weights.frozen_bytes, "that don't")):
        kept.append(_divided("weights", size * count, f"{kind}, in {_named(size)}", division, ("fsdp",)))
    if compute < 4 and not division.kind:
        kept.append(MemoryItem("casts", compute * weights.trained, "of weights that train, made for products"))
    return kept


def _training(weights: WeightCounts, division: Division, compute: int) -> list[MemoryItem]:
    if division.offloads_optimizer:
        return []
    trained, is_zero = weights.trained, division.kind.startswith("zero")
    parts = [_divided("gradients", 4 * trained, "in float32", division, _DIVIDE_GRADIENTS)]
    if division.kind == "zero3" and compute < 4:
        parts.append(_divided("gradients", 4 * trained, "made flat to step", division, _DIVIDE_STATES))
    if is_zero:
        parts.append(_divided("masters", 4 * trained, "weights in float32", division, _DIVIDE_STATES))
    return [*parts, _divided("moments", 8 * trained, "AdamW's two, in float32", division, _DIVIDE_STATES)]


def _buffers(weights: WeightCounts, division: Division, compute: int) -> list[MemoryItem]:
    everything = weights.trained + weights.frozen
    as_sent = compute if compute == 4 else compute + 4  # cast to float32
    sent = MemoryItem("buffers", as_sent * min(_BUCKET, weights.trained), "gradients on their way")
    if division.kind in ("zero1", "zero2"):
        return [sent]
    if division.kind == "zero3":
        whole = min(everything, _LIVE + _PREFETCHED)
        return [MemoryItem("gathered", compute * whole, "weights that are whole at once, at most"), sent]
    if division.kind == "fsdp":
        whole = compute * (weights.outside + 2 * weights.layer)
        largest = (compute + 4) * max(weights.outside, weights.layer)
        return [
            MemoryItem("gathered", whole, "two layers and everything outside of layers, whole"),
            MemoryItem("buffers", largest, "gradients of a part of the model on their way, and in float32"),
        ]
    return [MemoryItem("buffers", 4 * weights.trained if division.processes > 1 else 0, "gradients that DDP averages")]


def _divided(name: str, whole: int, why: str, division: Division, kinds: Sequence[str]) -> MemoryItem:
    """Return the part of one process, of a total that these kinds of sharding divide."""
    if division.kind not in kinds or division.processes == 1:
        return MemoryItem(name, whole, why)
    return MemoryItem(name, -(-whole // division.processes), f"{why}, one part of {division.processes}")


def _named(size: int) -> str:
    return "bfloat16" if size == 2 else "float32"


def count_weights(model: nn.Module) -> WeightCounts:
    """Count the weights of a model that is ready to train."""
    trained = frozen = quantized = layer = outside = 0
    frozen_bytes = 4
    for name, parameter in model.named_parameters():
        count = parameter_count(parameter)
        layer += count if _FIRST_LAYER.search(name) else 0
        outside += count if not _IN_LAYER.search(name) else 0
        if parameter.requires_grad:
            trained += count
        elif parameter.is_floating_point():
            frozen, frozen_bytes = frozen + count, parameter.element_size()
        else:
            quantized += count
    return WeightCounts(trained, frozen, frozen_bytes, quantized, layer, outside)


def planned_weights(model: PreTrainedModel, config: AdapterConfig, dtype: str) -> WeightCounts:
    """Count the weights that a run would train, from its base model.

    Args:
        model: The base model, which may be on `meta`. Towers are frozen in place. Its config has the stored precision:
            frozen weights of a full training keep it if it is `dtype`, and else are held in float32.
        config: The weights that train.
        dtype: Precision of the forward pass.
    """
    if config.method == "full":
        freeze_all_but(model, config.trained_towers)
        in_half = bool(config.train_towers) and dtype == "bfloat16" and model.config.dtype == torch.bfloat16
        return replace(count_weights(model), frozen_bytes=2 if in_half else 4)
    linear = {name: layer for name, layer in model.named_modules() if isinstance(layer, nn.Linear)}
    adapted = [layer for name, layer in linear.items() if re.fullmatch(config.lora_targets, name)]
    adapters = sum(config.lora_r * (layer.in_features + layer.out_features) for layer in adapted)
    head = model.get_output_embeddings()
    matrices = 1 if model.get_input_embeddings().weight is head.weight else 2
    rows = matrices * NEW_TOKENS * model.config.get_text_config().hidden_size
    if "projector" in config.trained_towers:
        rows += sum(p.numel() for name in projector_modules(model) for p in model.get_submodule(name).parameters())
    inside = [layer for name, layer in linear.items() if "language_model" in name and layer is not head]
    quantized = sum(layer.weight.numel() for layer in inside) if config.method == "qlora" else 0
    plain = count_weights(model.requires_grad_(False))
    return replace(
        plain,
        trained=adapters + rows,
        frozen=plain.frozen - quantized,
        frozen_bytes=2 if dtype == "bfloat16" else 4,
        quantized=quantized,
    )

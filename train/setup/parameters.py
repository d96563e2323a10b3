"""What of a model trains: freezing a tower, and counting parameters by tower."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

_TOWERS = (
    # First match wins: Qwen2-VL's merger lies inside of its vision tower.
    ("new tokens", ("trainable_tokens_delta",)),
    ("projector", ("multi_modal_projector", "merger")),
    ("vision tower", ("vision_tower", "visual", "vision_model")),
    ("language model", ("",)),
)


@dataclass(frozen=True)
class Count:
    """Parameters of one tower."""

    trainable: int
    total: int


def tower_of(name: str) -> str:
    """The tower that a parameter or module belongs to, by its dotted name."""
    parts = name.split(".")
    return next(tower for tower, marks in _TOWERS if any(not mark or mark in part for mark in marks for part in parts))


def freeze_tower(model: nn.Module, tower: str) -> None:
    """Keep the weights of one tower as they are."""
    for name, parameter in model.named_parameters():
        if tower_of(name) == tower:
            parameter.requires_grad_(False)


def freeze_unread(model: nn.Module) -> None:
    """Keep what LLaVA's language model never reads: the layers of its vision tower after `vision_feature_layer`.

    They get no gradient, so that nothing is trained otherwise. FSDP fails to resume with a weight that has none (torch
    2.13, "Missing optimizer state").
    """
    config: Any = model.config
    wanted = getattr(config, "vision_feature_layer", None)
    if wanted is None:
        return
    for name, module in model.named_modules():
        if tower_of(name) == "vision tower" and name.endswith("encoder.layers"):
            layers: Any = module
            states = [wanted] if isinstance(wanted, int) else wanted  # of the embeddings, then of each layer
            read = max(state if state >= 0 else len(layers) + 1 + state for state in states)
            for layer in layers[read:]:
                layer.requires_grad_(False)
        elif name.endswith("post_layernorm"):
            module.requires_grad_(False)


def count_by_tower(model: nn.Module) -> dict[str, Count]:
    """Trainable and total parameters of each tower; a tied matrix counts once."""
    trainable: dict[str, int] = {}
    total: dict[str, int] = {}
    for name, parameter in model.named_parameters():
        tower = tower_of(name)
        count = parameter_count(parameter)
        total[tower] = total.get(tower, 0) + count
        trainable[tower] = trainable.get(tower, 0) + (count if parameter.requires_grad else 0)
    return {tower: Count(trainable[tower], total[tower]) for tower, _ in _TOWERS if tower in total}


def parameter_count(parameter: nn.Parameter) -> int:
    """Weights in a parameter: in four bits two of them share a byte; under ZeRO-3 this process holds a part of them."""
    if (state := getattr(parameter, "quant_state", None)) is not None:
        return math.prod(state.shape)
    return getattr(parameter, "ds_numel", parameter.numel())


def keep_trained_weights_in_fp32(model: nn.Module) -> None:
    """Cast every weight that trains to fp32: in bf16 most small updates would be rounded away."""
    for parameter in model.parameters():
        # DeepSpeed keeps masters in fp32 of what it holds in bf16, and weights that are divided can't be cast here.
        if parameter.requires_grad and parameter.dtype != torch.float32 and not hasattr(parameter, "ds_numel"):
            parameter.data = parameter.data.float()

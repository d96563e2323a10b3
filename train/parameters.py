"""What of a model trains: freezing a tower, and counting parameters by tower."""

from __future__ import annotations

from dataclasses import dataclass

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


def count_by_tower(model: nn.Module) -> dict[str, Count]:
    """Trainable and total parameters of each tower; a tied matrix counts once."""
    trainable: dict[str, int] = {}
    total: dict[str, int] = {}
    for name, parameter in model.named_parameters():
        tower = tower_of(name)
        total[tower] = total.get(tower, 0) + parameter.numel()
        trainable[tower] = trainable.get(tower, 0) + (parameter.numel() if parameter.requires_grad else 0)
    return {tower: Count(trainable[tower], total[tower]) for tower, _ in _TOWERS if tower in total}


def keep_trained_weights_in_fp32(model: nn.Module) -> None:
    """Cast every weight that trains to fp32: in bf16 most small updates would be rounded away."""
    for parameter in model.parameters():
        if parameter.requires_grad and parameter.dtype != torch.float32:
            parameter.data = parameter.data.float()

"""How far a run can move a weight: whether new tokens' rows can get anywhere in so many steps."""

from __future__ import annotations

import math

import torch
from torch import nn

from reflectune.models.attention.positions import inner_model
from reflectune.train.settings.training import TrainingConfig

_SAMPLE_ROWS = 4096
"""Rows of the table of embeddings that its spread is measured on."""


def longest_travel(config: TrainingConfig, steps: int) -> float:
    """The learning rates of all steps added up: about what AdamW moves a number of a weight by, if always one way.

    Args:
        config: The run's learning rate, warm-up and schedule.
        steps: Optimiser steps of the whole run.
    """
    warmup = min(math.ceil(config.warmup * steps) if config.warmup < 1 else int(config.warmup), steps)
    falls = 1.0 if config.lr_scheduler == "constant_with_warmup" else 0.5  # the mean of a cosine's half, and of a line
    return config.learning_rate * (warmup / 2 + (steps - warmup) * falls)


def travel_line(config: TrainingConfig, model: nn.Module, steps: int) -> str:
    """How far rows can travel, beside how far apart the table's are, for a person to read."""
    table = inner_model(model).get_input_embeddings().weight[:_SAMPLE_ROWS]
    spread, travel = float(table.detach().to(torch.float32).std()), longest_travel(config, steps)
    far = f"a new token's row can move by {travel:.2g}, the learning rates added up; its table spreads by {spread:.2g}"
    if config.method != "full" and travel < spread:
        return f"{far}: too few steps for new rows to get anywhere; raise `epochs`, `max_steps` or `learning_rate`"
    return far

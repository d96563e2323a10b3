"""What the time of a training goes to, from torch's profiler: shares that add up to the whole."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch import nn
from torch.autograd.profiler_util import FunctionEvent
from transformers import Trainer

KINDS = ("data", "vision tower", "optimizer", "attention", "matmul", "rest")
_DATA, _TOWER, _STEP = "benchmark: data", "benchmark: vision tower", "benchmark: step"
_MATMULS = {"aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::mkldnn_linear"}


def shares(trainer: Trainer, tower: nn.Module) -> dict[str, float]:
    """Train, and say which share of the CPU's time went to what.

    Everything within loading and encoding data is `data`, within the vision tower's forward pass `vision tower`, and
    within the optimiser's step and the clipping of gradients `optimizer`; the rest is told apart by the operation, and
    has in it what no operation takes (Python).

    Args:
        trainer: Ready to train, for a few steps. It is no good for timing afterwards.
        tower: Its model's vision tower, frozen: then it has no backward pass.
    """
    _mark(trainer, "get_batch_samples", _DATA)
    _mark(trainer, "training_step", _STEP)
    _mark(tower, "forward", _TOWER)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        trainer.train()
    spent: Counter[str] = Counter()
    for event in profiler.events():
        spent[_kind(event)] += event.self_cpu_time_total
    return {kind: spent[kind] / spent.total() for kind in KINDS}


def _kind(event: FunctionEvent) -> str:
    above: Any = event
    while above is not None:
        if above.name in (_DATA, _TOWER):
            return "data" if above.name == _DATA else "vision tower"
        if above.name.startswith("Optimizer.step") or "foreach_norm" in above.name:
            return "optimizer"
        above = above.cpu_parent
    if "scaled_dot_product" in event.name:
        return "attention"
    return "matmul" if event.name in _MATMULS else "rest"


def _mark(owner: Any, name: str, label: str) -> None:
    """Let a method's calls show up in the profile under a label."""
    method = getattr(owner, name)

    def marked(*args: Any, **kwargs: Any) -> Any:
        with torch.profiler.record_function(label):
            return method(*args, **kwargs)

    setattr(owner, name, marked)

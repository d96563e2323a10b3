"""Training on a GPU: trees are read by FlexAttention, and layers are compiled."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager
from typing import Any

import torch

from reflectune.models.attention.packed import model_flex_problem
from reflectune.models.attention.positions import inner_model
from reflectune.models.prefix.packed import replaced_layer_calls
from reflectune.train.runs.launch import sharding
from reflectune.train.runs.skeleton import say
from reflectune.train.settings.training import TrainingConfig

MAX_GRAPHS = 512
"""Maximum graphs of a layer: one a length, for training and for validation, and twice as many if only some layers are
recomputed. With dynamic lengths compiling took six times as long, and layers were slower."""


def packs_trees(model: Any, config: TrainingConfig, args: Any) -> bool:
    """Return True if a GPU should read trees by FlexAttention; if not, because of a problem, that is printed.

    Layers are compiled too, unless weights are sharded or quantized: their hooks would end every compiled part. A part
    that can't be compiled runs as it is, with a warning of torch's.

    Args:
        model: The model, possibly wrapped.
        config: Precision, method and `compile`.
        args: Arguments of the trainer: its device, and its process.
    """
    if args.device.type != "cuda" or config.compile == "off":
        return False
    dtype = torch.bfloat16 if config.precision == "bfloat16" else torch.float32
    network = inner_model(model)
    if problem := model_flex_problem(network, dtype, backward=True):
        say(args, f"trees have dense masks, and are read more slowly: FlexAttention can't be used: {problem}")
        return False
    if sharding(os.environ) not in ("zero3", "fsdp") and config.method != "qlora":
        torch._dynamo.config.suppress_errors = True
        torch._dynamo.config.recompile_limit = MAX_GRAPHS
        torch._dynamo.config.accumulated_recompile_limit = 2 * MAX_GRAPHS
        torch._dynamo.config.optimize_ddp = False  # it would compile a layer in pieces, one a bucket of gradients
        for layer in network.model.language_model.layers:
            if not hasattr(layer, "linear_attn"):  # it looks up its segments, and has kernels of its own
                layer.compile(dynamic=False)
        say(
            args,
            "the layers are compiled at each new padded length of a batch, about 20 s each; eight of them "
            "lie between a power of two and the next; those of validation are compiled too",
        )
    return True


def uncompiled(model: Any) -> AbstractContextManager[None]:
    """Run the layers as they are inside this block.

    An engine that decodes addresses a cache by a layer's index, for which each layer would be compiled alone.
    """
    layers = inner_model(model).model.language_model.layers
    return replaced_layer_calls(layers, [None] * len(layers))

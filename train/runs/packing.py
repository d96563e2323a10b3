"""Training on a GPU: FlexAttention for trees, and compiled layers."""

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
"""Maximum compiled graphs of a layer: one per length for training and one for validation, twice as many if only some
layers are recomputed. With dynamic lengths, compiling took six times as long and layers were slower."""


def packs_trees(model: Any, config: TrainingConfig, args: Any) -> bool:
    """Return True if trees should be read by FlexAttention. A problem that prevents it is printed.

    Layers are compiled too, unless weights are sharded or quantized, whose hooks break every compiled graph. Code that
    can't be compiled runs eagerly, with torch's warning.

    Args:
        model: The model, possibly wrapped.
        config: Precision, method and `compile`.
        args: Arguments of the trainer.
    """
    if args.device.type != "cuda" or config.compile == "off":
        return False
    dtype = torch.bfloat16 if config.precision == "bfloat16" else torch.float32
    network = inner_model(model)
    if problem := model_flex_problem(network, dtype, backward=True):
        say(args, f"FlexAttention can't be used ({problem}); trees get dense masks, which is slower")
        return False
    if sharding(os.environ) not in ("zero3", "fsdp") and config.method != "qlora":
        torch._dynamo.config.suppress_errors = True
        torch._dynamo.config.recompile_limit = MAX_GRAPHS
        torch._dynamo.config.accumulated_recompile_limit = 2 * MAX_GRAPHS
        torch._dynamo.config.optimize_ddp = False  # it would split a layer at each gradient bucket
        for layer in network.model.language_model.layers:
            if not hasattr(layer, "linear_attn"):  # linear attention looks up segments and has its own kernels
                layer.compile(dynamic=False)
        say(
            args,
            "the layers are compiled for each new padded length of a batch, which takes about 20 s; there are eight "
            "lengths per power of two; validation compiles its own",
        )
    return True


def uncompiled(model: Any) -> AbstractContextManager[None]:
    """Run the layers uncompiled inside this block.

    The inference engine indexes its cache by layer, so each layer would be compiled separately.
    """
    layers = inner_model(model).model.language_model.layers
    return replaced_layer_calls(layers, [None] * len(layers))

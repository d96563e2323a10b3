"""Shard a model under FSDP layer by layer, from its file: a process never holds more than its own shard."""

from __future__ import annotations

from typing import Any

import torch
from accelerate.utils.fsdp_utils import fsdp2_prepare_auto_wrap_policy, fsdp2_prepare_model
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from reflectune.models.weights.pretrained import cast_buffers


def shard(trainer: Any) -> None:
    """Under FSDP, shard the layers of the decoder and of the vision tower among the processes, one at a time.

    accelerate (1.15) casts the whole model on each process before it shards it, or has the first process hold it all
    (`cpu_ram_efficient_loading`). Here a layer's weights are views of their file until its turn; then the layer is cast
    and sharded. accelerate shards the rest. The shards and the optimiser's groups are those that it would make itself.
    Can go once `fsdp2_prepare_model` casts each module in its turn.

    Args:
        trainer: A trainer whose model is as it was loaded, but for frozen weights.
    """
    if not trainer.is_fsdp_enabled:
        return
    model, plugin = trainer.model, trainer.accelerator.state.fsdp_plugin
    _name_layers(model, plugin)
    plugin.set_auto_wrap_policy(model)
    is_layer = fsdp2_prepare_auto_wrap_policy(plugin, model)
    if is_layer is not None and not plugin.activation_checkpointing and plugin.ignored_modules is None:
        for layer in [module for module in model.modules() if is_layer(module)]:
            _cast(layer, model.config.dtype)
            fully_shard(
                layer,
                reshard_after_forward=plugin.reshard_after_forward,
                offload_policy=plugin.cpu_offload,
                mp_policy=plugin.mixed_precision_policy or MixedPrecisionPolicy(),
            )
        plugin.transformer_cls_names_to_wrap = []  # all are sharded, and their classes have other names now
    _cast(model, model.config.dtype)
    cast_buffers(model, model.config.dtype)
    fsdp2_prepare_model(trainer.accelerator, model)


def _cast(module: nn.Module, dtype: torch.dtype) -> None:
    """Cast trained weights to float32, and frozen ones to the model's dtype."""
    for parameter in module.parameters():
        target = torch.float32 if parameter.requires_grad else dtype
        if parameter.dtype != target:
            parameter.data = parameter.data.to(target)


def _name_layers(model: Any, plugin: Any) -> None:
    """Name the classes of layers that FSDP gathers one at a time: those that the model has.

    transformers names CLIP's text embeddings too, which LLaVA lacks, and accelerate (1.15) fails over a missing class.
    """
    if plugin.transformer_cls_names_to_wrap is None:
        present = {type(module).__name__ for module in model.modules()}
        named = present & set(model._no_split_modules)
        plugin.transformer_cls_names_to_wrap = sorted(name for name in named if name.endswith(("Layer", "Block")))

"""Divides a model under FSDP, layer by layer, from its file: no process ever holds more than its own part."""

from __future__ import annotations

import os
from typing import Any

import torch
from accelerate.utils.fsdp_utils import fsdp2_prepare_auto_wrap_policy, fsdp2_prepare_model
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from reflectune.models.weights.pretrained import cast_buffers
from reflectune.train.settings.sft import SftConfig
from reflectune.train.settings.training import TrainingConfig
from reflectune.train.runs.launch import sharding


def divides_from_file(config: TrainingConfig) -> bool:
    """Whether each process of this launch is to hold its part of the weights alone, and read it from their file.

    A dry run counts what is whole, and a tower whose features are cached is run before the model is divided.
    """
    features = isinstance(config, SftConfig) and bool(config.cache_features)
    return sharding(os.environ) == "fsdp" and not config.dry_run and not features


def divide(trainer: Any) -> None:
    """Under FSDP, divide the layers of the decoder and of the vision tower among the processes, one at a time.

    accelerate (1.15) casts the whole model on each process before it divides it, or has the first process hold it all
    (`cpu_ram_efficient_loading`). Here a layer's weights are views of their file until its turn comes; it is cast, and
    its part kept. accelerate then divides what is outside of layers. What is divided, and how, is what it would do by
    itself, and the optimiser has the groups that it would have. Can go once `fsdp2_prepare_model` casts what it divides
    in its own turn.

    Args:
        trainer: A trainer whose model nothing was done to since it was loaded but freezing.
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
        plugin.transformer_cls_names_to_wrap = []  # none is left; their classes have other names now
    _cast(model, model.config.dtype)
    cast_buffers(model, model.config.dtype)
    fsdp2_prepare_model(trainer.accelerator, model)


def _cast(module: nn.Module, dtype: torch.dtype) -> None:
    """Cast what trains to float32, and what is frozen to the dtype that the model was asked for in."""
    for parameter in module.parameters():
        wanted = torch.float32 if parameter.requires_grad else dtype
        if parameter.dtype != wanted:
            parameter.data = parameter.data.to(wanted)


def _name_layers(model: Any, plugin: Any) -> None:
    """Tell FSDP which layers to gather one at a time: the decoder's and the vision tower's that the model really has.

    transformers names CLIP's text embeddings too, which LLaVA lacks, and accelerate (1.15) fails over a missing one.
    """
    if plugin.transformer_cls_names_to_wrap is None:
        present = {type(module).__name__ for module in model.modules()}
        named = present & set(model._no_split_modules)
        plugin.transformer_cls_names_to_wrap = sorted(name for name in named if name.endswith(("Layer", "Block")))

"""A model's weights, counted for the forecast of memory: of a model as it will be trained, or of shapes alone."""

from __future__ import annotations

import re
from dataclasses import replace

from torch import nn
from transformers import PreTrainedModel

from reflectune.train.forecasting.memory import Weights
from reflectune.train.settings.training import TrainingConfig
from reflectune.train.setup.parameters import freeze_tower, parameter_count

_IN_LAYER = re.compile(r"\.(?:layers|blocks)\.\d+\.")
_FIRST_LAYER = re.compile(r"language_model\..*\blayers\.0\.")
NEW_TOKENS = 4
"""Reflection tokens of a scheme."""


def weights_of(model: nn.Module, *, double: bool) -> Weights:
    """The weights of a model that is ready to train.

    Args:
        model: The model, its parameters frozen or not.
        double: Whether the scales of weights in four bits are quantised too.
    """
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
    return Weights(trained, frozen, frozen_bytes, quantized, double, layer, outside)


def planned_weights(model: PreTrainedModel, config: TrainingConfig) -> Weights:
    """The weights that a run trains, from a model of the right shapes that nothing was done to.

    Args:
        model: The base model; it may lie on `meta`. Its vision tower is frozen if the run freezes it.
        config: The run's.
    """
    if config.method == "full":
        if config.freeze_vision:
            freeze_tower(model, "vision tower")
        return weights_of(model, double=False)
    linear = {name: layer for name, layer in model.named_modules() if isinstance(layer, nn.Linear)}
    adapted = [layer for name, layer in linear.items() if re.fullmatch(config.lora_targets, name)]
    adapters = sum(config.lora_r * (layer.in_features + layer.out_features) for layer in adapted)
    head = model.get_output_embeddings()
    matrices = 1 if model.get_input_embeddings().weight is head.weight else 2
    rows = matrices * NEW_TOKENS * model.config.get_text_config().hidden_size
    inside = [layer for name, layer in linear.items() if "language_model" in name and layer is not head]
    quantized = sum(layer.weight.numel() for layer in inside) if config.method == "qlora" else 0
    plain = weights_of(model.requires_grad_(False), double=config.double_quantization)
    return replace(
        plain,
        trained=adapters + rows,
        frozen=plain.frozen - quantized,
        frozen_bytes=2 if config.dtype == "bfloat16" else 4,
        quantized=quantized,
    )

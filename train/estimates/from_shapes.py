"""The forecast of a run from its model's shapes alone: no weights, no data, no accelerator."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForImageTextToText, PreTrainedConfig

from reflectune.core.durable import read_json
from reflectune.models.features.tower import refuse_features
from reflectune.models.rendering.image_fitting import refuse_other_family
from reflectune.models.schemes.registry import find_scheme
from reflectune.models.weights.pretrained import dtype_of
from reflectune.train.estimates.activations import BatchSize
from reflectune.train.estimates.architecture import Architecture, image_patches, image_tokens, is_qwen
from reflectune.train.estimates.forecast import Forecast, forecast, recomputation_line
from reflectune.train.estimates.memory import GIB, Division, format_bytes, planned_weights, table
from reflectune.train.settings.estimate import EstimateConfig
from reflectune.train.settings.model import AdapterConfig
from reflectune.train.settings.training import ComputeConfig

QUESTION_TOKENS = 60
"""Tokens of the text around an image and a question."""


def forecast_from_shapes(config: EstimateConfig, shapes: Path) -> Forecast:
    """Make the forecast of a batch of long questions.

    Args:
        config: Settings of the run and of the machine.
        shapes: A file of `configs/architectures`, or a model's `config.json`.
    """
    of_model = model_config(shapes)
    refuse_other_family(config.image_settings(), of_model.model_type)
    with torch.device("meta"):
        model = AutoModelForImageTextToText.from_config(of_model)
    architecture = Architecture.of(of_model)
    offloads_weights = config.offload and config.sharding in ("zero3", "fsdp")
    kind = "" if config.sharding == "none" else config.sharding
    division = Division(kind, config.processes, config.offload, offloads_weights)
    adapters = AdapterConfig.of(config)
    compute = ComputeConfig.of(config).model_copy(update={"dtype": config.precision})
    batch, weights = long_batch(config, of_model), planned_weights(model, adapters, config.precision)
    if config.cache_features:
        refuse_features(model, config.trained_towers)
        batch = replace(batch, patches=0)
    available = None if config.device_gib is None else int(config.device_gib * GIB)
    cached = feature_bytes(config, of_model, weights.frozen_bytes) if config.cache_features else 0
    made = forecast(adapters, compute, architecture, weights, batch, division, "cuda", available)
    return replace(made, feature_bytes=cached)


def model_config(shapes: Path) -> PreTrainedConfig:
    """Read a model's config from a file of `configs/architectures`, or from its own."""
    facts: dict[str, Any] = read_json(shapes, "the model's shapes")
    config = AutoConfig.for_model(**(facts.get("config", facts)))
    config.dtype = dtype_of(config)
    return config


def feature_bytes(config: EstimateConfig, model: PreTrainedConfig, frozen_bytes: int) -> int:
    """Return the bytes of an image's cached features: Qwen's after the projector, LLaVA's of each layer that it reads.

    Args:
        model: Config of the model.
        frozen_bytes: Bytes of a number that a frozen tower puts out.
    """
    layers = getattr(model, "vision_feature_layer", -1)
    width = model.get_text_config().hidden_size if is_qwen(model) else Architecture.of(model).vision_width
    count = len(layers) if isinstance(layers, (list, tuple)) else 1
    return (config.image_tokens or image_tokens(model, config.max_pixels)) * width * count * frozen_bytes


def long_batch(config: EstimateConfig, model: PreTrainedConfig) -> BatchSize:
    """Return the size of a batch of questions that each have all their branches."""
    image, branches = config.image_tokens or image_tokens(model, config.max_pixels), branches_of(config)
    prefix, rows = image + QUESTION_TOKENS, 1 if config.tree else branches
    longest = prefix + branches // rows * config.branch_tokens
    patches = rows * image_patches(model, image)
    one = BatchSize(rows * longest, longest, branches * config.branch_supervised, patches, rows)
    batch = one.times(config.per_device_train_batch_size)
    return batch.within(config.tokens_per_device, config.gradient_accumulation_steps)


def branches_of(config: EstimateConfig) -> int:
    """Return the branches of a long question."""
    return config.branches or find_scheme(config.scheme).long_question


def report(config: EstimateConfig, predicted: Forecast) -> str:
    """Format the memory table under a line about the run."""
    weights, batch = predicted.weights, predicted.batch
    count = f"{weights.trained:,} of {weights.trained + weights.frozen + weights.quantized:,}"
    launch = f"{config.processes} processes, {'nothing' if config.sharding == 'none' else config.sharding} divided"
    head = (
        f"{config.model}, {config.method}: {count} weights train; {launch if config.processes > 1 else 'one process'}; "
        f"a batch of {batch.trees} questions with {branches_of(config)} branches, {batch.tokens:,} tokens"
    )
    again = [recomputation_line(predicted)] if config.gradient_checkpointing == "auto" else []
    cached = f"features: {format_bytes(predicted.feature_bytes)} an image on the disk, and the tower isn't run"
    return "\n".join(
        [head, *table(predicted.parts(), predicted.available), *again, *([cached] if predicted.feature_bytes else [])]
    )

"""How long a training takes: the operations of its questions over a rate, given or measured on a few layers here."""

from __future__ import annotations

from transformers import PreTrainedConfig

from reflectune.core.devices import find_device
from reflectune.core.progress import duration
from reflectune.train.estimates.architecture import Architecture, image_patches, image_tokens, is_qwen
from reflectune.train.estimates.config import EstimateConfig
from reflectune.train.estimates.rates import TRAINED, Rates, given_rates, measure_training
from reflectune.train.estimates.work import Work, flop


def time_line(config: EstimateConfig, model: PreTrainedConfig, work: Work) -> str:
    """The time of all epochs, in words, and what it comes from.

    Args:
        config: The run's, with `questions`.
        model: Its model's.
        work: What a question takes.
    """
    shapes = Architecture.of(model)
    questions = (config.questions or 0) * config.epochs
    if config.max_steps is not None:
        batch = config.per_device_train_batch_size * config.gradient_accumulation_steps * config.processes
        questions = config.max_steps * batch
    rates = _rates(config, model, work)
    seconds = question_seconds(shapes, work, rates, passes(config), passes_of_vision(config)) * questions
    return (
        f"time: about {duration(seconds / config.processes)} for {questions:,.0f} questions like these on "
        f"{config.processes} devices, {rates.how}"
    )


def question_seconds(shapes: Architecture, work: Work, rates: Rates, decoder: float, vision: float) -> float:
    """Seconds of a question on one device.

    Args:
        shapes: The model's.
        work: What the question takes.
        rates: The device's.
        decoder: Passes through the decoder, the backward pass counted by its operations; see `passes`.
        vision: Passes through the vision tower.
    """
    one = flop(shapes, work)
    return vision * one.vision / rates.vision + decoder * (one.prefix + one.branches) / rates.prefix


def passes(config: EstimateConfig) -> float:
    """A step's operations in the decoder in forward passes: adapters need no gradients of the weights they stand by."""
    trained = TRAINED if config.method == "full" and "language_model" in config.trained_towers else TRAINED - 1
    return trained + bool(config.gradient_checkpointing)


def passes_of_vision(config: EstimateConfig) -> float:
    """A step's operations in the vision tower; none where its features are cached."""
    if "vision_tower" in config.trained_towers:
        return TRAINED + bool(config.gradient_checkpointing)
    return 0 if config.cache_features else 1


def long_question(config: EstimateConfig, model: PreTrainedConfig, text: int, branches: int) -> Work:
    """A question with all its branches.

    Args:
        config: The run's.
        model: Its model's.
        text: Tokens of the text around its picture.
        branches: That it has.
    """
    tokens = config.image_tokens or image_tokens(model, config.max_pixels)
    patches = image_patches(model, tokens)
    tile = patches if is_qwen(model) else (model.vision_config.image_size // model.vision_config.patch_size) ** 2
    prefix = tokens + text
    return Work(patches, tile, prefix, branches, config.branch_tokens, row_tokens=config.branch_supervised)


def _rates(config: EstimateConfig, model: PreTrainedConfig, work: Work) -> Rates:
    if config.tflops is not None:
        return given_rates(Architecture.of(model), config.tflops, None, 1, 2)
    device, half = str(find_device(config.device)), config.dtype == "bfloat16"
    return measure_training(model, work, batch=config.per_device_train_batch_size, autocast=half, device=device)

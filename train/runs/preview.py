"""The text of a dry run: data, tokens, parameters, steps, memory, time, and an example of each kind."""

from __future__ import annotations

import itertools
import math
import os
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import TrainingArguments

from reflectune.core.progress import duration
from reflectune.models.attention.collation import loss_terms
from reflectune.models.attention.packed import pad_to_bucket
from reflectune.models.attention.positions import inner_model
from reflectune.models.attention.tree import IGNORE, Segment, Tree
from reflectune.models.rendering.image_fitting import images_in_words
from reflectune.models.rendering.renderer import Renderer
from reflectune.models.weights.tokens import gathered
from reflectune.train.data.examples import Collator, EncodedExample, EncodedExamples
from reflectune.train.data.micro_batches import questions_per_batch, tokens_of
from reflectune.train.estimates.architecture import Architecture
from reflectune.train.estimates.forecast import (
    Forecast,
    device_memory,
    forecast,
    largest_batch,
    recomputation_line,
)
from reflectune.train.estimates.memory import count_weights, table
from reflectune.train.runs.arguments import global_batch
from reflectune.train.runs.launch import division, sharding
from reflectune.train.runs.packing import packs_trees
from reflectune.train.settings.model import AdapterConfig
from reflectune.train.settings.sft import SftConfig
from reflectune.train.settings.training import ComputeConfig, OptimisationConfig
from reflectune.train.weights.parameters import parameter_table, recompute_layers

_SAMPLE = 64
"""Examples that are encoded to estimate the number of tokens."""
_LONG_RUN = 4
"""Repetitions from which a token (an image's placeholder) is shown once, with its count."""
_SAMPLE_ROWS = 4096
"""Rows of the embedding table whose spread is measured."""
_SLOW = 5.0
"""Seconds from which a batch isn't timed a second time."""


def describe(
    config: SftConfig,
    model: nn.Module,
    dataset: EncodedExamples,
    renderer: Renderer,
    steps: int,
    epochs: float,
    args: TrainingArguments,
) -> str:
    """Describe a run.

    Args:
        model: Ready to train.
        dataset: The training examples.
        renderer: Decodes their tokens.
        steps: Steps of the whole run.
        epochs: Epochs of the whole run.
        args: Arguments of the trainer. A batch is read on its device to measure the time.
    """
    sample = sample_of(dataset)
    memory = forecast_of(config, model, sample, args)
    batch = memory.batch
    return "\n".join(
        [
            *_data_lines(str(config.train_data), dataset, sample, renderer.processor, inner_model(model)),
            _batch_line(dataset, global_batch(args).size),
            parameter_table(model),
            f"steps: {steps:,} ({epochs:,.3g} epochs), a checkpoint every {config.save_steps:,}, into "
            f"{config.output_dir}",
            *(
                [row_update_line(OptimisationConfig.of(config), model, steps, adapters=config.method != "full")[0]]
                if dataset.scheme.tokens
                else []
            ),
            f"memory of each device, estimated for a batch of the longest questions ({batch.tokens:,} tokens):",
            *table(memory.parts(), memory.available),
            *([recomputation_line(memory)] if config.gradient_checkpointing == "auto" else []),
            _time_line(config, model, sample, steps, args, memory.forward.recomputed),
            *_example_lines(dataset, renderer),
        ]
    )


def sample_of(dataset: EncodedExamples) -> list[EncodedExample]:
    """Encode examples from all over the data."""
    return [dataset[index] for index in range(0, len(dataset), max(len(dataset) // _SAMPLE, 1))]


def forecast_of(
    config: SftConfig, model: nn.Module, sample: Sequence[EncodedExample], args: TrainingArguments
) -> Forecast:
    """Make the forecast of a run's memory, from a sample of its examples. See `describe`."""
    architecture = Architecture.of(inner_model(model).config)
    batch = largest_batch(sample, config.per_device_train_batch_size, architecture.patch_size)
    return forecast(
        AdapterConfig.of(config),
        ComputeConfig.of(config),
        architecture,
        count_weights(model),
        batch.within(config.tokens_per_device, config.gradient_accumulation_steps),
        division(os.environ, args.world_size),
        args.device.type,
        device_memory(args.device),
    )


def mark_supervised(tree: Tree, renderer: Renderer) -> str:
    """Return a tree as text: each branch on its own line, supervised tokens in double brackets."""
    lines = [_marked_segment(tree.prefix, renderer)]
    lines += [f"  ├ {_marked_segment(branch, renderer)}" for branch in tree.branches]
    return "\n".join(lines)


def seconds_of_batch(
    compute: ComputeConfig,
    model: nn.Module,
    examples: Sequence[EncodedExample],
    size: int,
    device: torch.device,
    *,
    recomputed: int = 0,
    in_half: bool = False,
    packs: bool = False,
) -> float | None:
    """Measure the forward and backward pass of a batch of middling length, in seconds. Gradients are dropped.

    Args:
        compute: Precision.
        model: Ready to train; it is moved to the device, and can't be trained afterwards.
        examples: A sample of the data.
        size: Examples of the batch, at most as many as the sample has.
        device: Device of the run.
        recomputed: n, if every n-th layer is computed again.
        in_half: Hold all weights in bfloat16, as DeepSpeed does.
        packs: Read trees by FlexAttention (`packs_trees`); the first pass compiles, and isn't measured.

    Returns:
        None if the batch doesn't fit into memory.
    """
    start = (len(examples) - size) // 2
    if recomputed:
        recompute_layers(model, recomputed)
    batch = Collator(inner_model(model))(sorted(examples, key=tokens_of)[start : start + size])
    tensors = {name: value for name, value in batch.items() if isinstance(value, Tensor)}
    inputs = {name: value.to(device) for name, value in (pad_to_bucket(tensors, device) if packs else tensors).items()}
    try:
        model.to(device)
        if in_half:
            model.to(torch.bfloat16)
        if packs:
            _timed(model, inputs, device, compute.precision)
        seconds = _timed(model, inputs, device, compute.precision)
        return seconds if seconds > _SLOW else min(seconds, _timed(model, inputs, device, compute.precision))
    except torch.OutOfMemoryError:
        return None


def max_row_update(optimisation: OptimisationConfig, steps: int) -> float:
    """Sum the learning rates of all steps: about the farthest that AdamW moves a number, if always one way.

    Args:
        optimisation: Learning rate, warm-up and schedule.
        steps: Steps of the whole run.
    """
    warmup = optimisation.warmup
    first = min(math.ceil(warmup * steps) if warmup < 1 else int(warmup), steps)
    share = 1.0 if optimisation.lr_scheduler == "constant_with_warmup" else 0.5  # mean of half a cosine, and of a line
    return optimisation.learning_rate * (first / 2 + (steps - first) * share)


def row_update_line(
    optimisation: OptimisationConfig, model: nn.Module, steps: int, *, adapters: bool
) -> tuple[str, bool]:
    """Compare the farthest that new rows can move with the spread of the embedding table.

    Returns:
        A sentence, and True if it is a warning: next to adapters the rows can't move as far as the table spreads.
    """
    table, travel = inner_model(model).get_input_embeddings().weight, max_row_update(optimisation, steps)
    with gathered(table):
        spread = float(table[:_SAMPLE_ROWS].detach().to(torch.float32).std())
    far = (
        f"in {steps:,} steps a new token's row can move by {travel:.2g} (the sum of the learning rates); the standard "
        f"deviation of its table is {spread:.2g}"
    )
    if adapters and travel < spread:
        return (
            f"warning: {far}: too few to train new rows; raise `epochs` or `learning_rate`, or take smaller steps",
            True,
        )
    return far, False


def _data_lines(
    name: str, dataset: EncodedExamples, sample: Sequence[EncodedExample], processor: Any, model: Any
) -> list[str]:
    examples = dataset.examples
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in Counter(map(dataset.scheme.kind, examples)).items())
    branches = sum(len(example.branches) for example in examples)
    segments = [s for example in sample for tree in example.trees for s in (tree.prefix, *tree.branches)]
    tokens = sum(len(segment.ids) for segment in segments) / len(sample)
    supervised = sum(label != IGNORE for segment in segments for label in segment.labels) / len(sample)
    images = [example.trees[0].prefix.ids.count(model.config.image_token_id) for example in sample]
    return [
        f"data: {len(examples):,} questions ({kinds}), {branches:,} branches, from {name}",
        f"tokens: about {tokens:,.0f} a question, {supervised:,.1f} of them supervised; "
        f"{tokens * len(examples):,.0f} to read each once (estimated from {len(sample)} questions)",
        f"tokens of an image: {min(images):,} at least, {sum(images) / len(images):,.0f} on average, "
        f"{max(images):,} at most",
        _lengths_line(dataset),
        f"images: {images_in_words(processor)}",
    ]


def _lengths_line(dataset: EncodedExamples) -> str:
    branches, questions = dataset.left_out()
    if not branches:
        return f"lengths: all fit into {dataset.max_tokens:,} tokens"
    return (
        f"lengths: {branches:,} passages or prompts of {questions:,} questions don't fit into {dataset.max_tokens:,} "
        "tokens with their image and are left out"
    )


def _batch_line(dataset: EncodedExamples, questions: int) -> str:
    rows = sum(max(len(example.branches), 1) for example in dataset.examples) / len(dataset.examples)
    return (
        f"batch: {questions:,} questions a step, {questions * rows:,.0f} rows on average (a question with one passage "
        "or prompt, or without)"
    )


def _time_line(
    config: SftConfig,
    model: nn.Module,
    sample: Sequence[EncodedExample],
    steps: int,
    args: TrainingArguments,
    recomputed: int,
) -> str:
    kind, questions = sharding(os.environ), config.per_device_train_batch_size * config.gradient_accumulation_steps
    size = config.per_device_train_batch_size
    if config.tokens_per_device:
        size = questions_per_batch(config.tokens_per_device, [tokens_of(example) for example in sample], questions)
    size = min(size, len(sample))  # as many are timed
    if kind in ("zero3", "fsdp"):
        return f"time: not measured, since {kind} divides the model only when training begins"
    in_half = kind.startswith("zero") and config.method == "full" and config.precision == "bfloat16"
    compute = ComputeConfig.of(config)
    packs = packs_trees(model, config, args)
    seconds = seconds_of_batch(
        compute, model, sample, size, args.device, recomputed=recomputed, in_half=in_half, packs=packs
    )
    if seconds is None:
        return "time: not measured, a batch does not fit"
    whole = duration(seconds * questions / size * steps)
    return f"time: about {whole}, from one batch forward and backward here in {seconds:.2f} s"


def _timed(model: nn.Module, inputs: Mapping[str, Any], device: torch.device, dtype: str) -> float:
    began = time.perf_counter()
    with torch.autocast(device.type, torch.bfloat16, enabled=dtype == "bfloat16"):
        loss, weight = loss_terms(model, inputs)
    (loss / weight).backward()
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
    model.zero_grad(set_to_none=True)
    return time.perf_counter() - began


def _example_lines(dataset: EncodedExamples, renderer: Renderer) -> list[str]:
    lines = []
    first: dict[str, int] = {}
    for i, example in enumerate(dataset.examples):
        first.setdefault(dataset.scheme.kind(example), i)
    for kind, index in sorted(first.items()):
        encoded = dataset[index]
        lines += [f"example {kind}, {encoded.id}, ⟦supervised⟧:", mark_supervised(encoded.trees[0], renderer)]
    return lines


def _marked_segment(segment: Segment, renderer: Renderer) -> str:
    pieces = []
    pairs = zip(segment.ids, segment.labels, strict=True)
    for supervised, group in itertools.groupby(pairs, key=lambda pair: pair[1] != IGNORE):
        text = _decoded([token for token, _ in group], renderer)
        pieces.append(f"⟦{text}⟧" if supervised else text)
    return "".join(pieces).replace("\n", "⏎")


def _decoded(ids: Sequence[int], renderer: Renderer) -> str:
    """Decode tokens, with a long run of one token as `<token>×count`."""
    pieces: list[str] = []
    pending: list[int] = []
    for token, run in itertools.groupby(ids):
        count = len(list(run))
        if count < _LONG_RUN:
            pending += [token] * count
        else:
            pieces += [renderer.decode(pending), f"{renderer.decode([token])}×{count}"]
            pending = []
    return "".join([*pieces, renderer.decode(pending)])

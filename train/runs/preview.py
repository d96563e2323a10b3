"""What a dry run prints: how much there is to train, with what, what it takes, and what the model reads and writes."""

from __future__ import annotations

import itertools
import math
import os
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from transformers import TrainingArguments

from reflectune.core.progress import duration
from reflectune.models.attention.positions import inner_model
from reflectune.models.attention.tree import IGNORE, Segment, Tree
from reflectune.models.processing.image_fitting import images_in_words
from reflectune.models.rendering.renderer import Renderer
from reflectune.train.data.examples import EncodedExample, EncodedExamples
from reflectune.train.data.global_batch import GlobalBatch
from reflectune.train.estimates.architecture import Architecture
from reflectune.train.estimates.forecast import forecast, largest_batch, seconds_of_batch
from reflectune.train.estimates.memory import table
from reflectune.train.model.parameters import parameter_table
from reflectune.train.runs.launch import division, sharding
from reflectune.train.settings.sft import SftConfig
from reflectune.train.settings.training import TrainingConfig

_SAMPLE = 64
"""Examples that are encoded to estimate the number of tokens."""
_LONG_RUN = 4
"""A token that is repeated this often (an image's placeholder) is shown once, with its count."""
_SAMPLE_ROWS = 4096
"""Rows of the table of embeddings that its spread is measured on."""


def describe(
    config: SftConfig,
    model: nn.Module,
    dataset: EncodedExamples,
    renderer: Renderer,
    steps: int,
    args: TrainingArguments,
) -> str:
    """Data, tokens, parameters by tower, steps and time, memory, and an example of each kind with its spans marked.

    Args:
        config: The run's.
        model: Ready to train.
        dataset: The examples as it reads them.
        renderer: Decodes its tokens.
        steps: Of the whole run.
        args: Arguments of the trainer; a batch is read on its device to see how long it takes.
    """
    sample = [dataset[index] for index in range(0, len(dataset), max(len(dataset) // _SAMPLE, 1))]
    return "\n".join(
        [
            *_data_lines(config, dataset, sample, renderer.processor, inner_model(model).config.image_token_id),
            _batch_line(config, dataset, args.world_size),
            parameter_table(model),
            f"steps: {steps:,}, a checkpoint every {config.save_steps:,}, into {config.output_dir}",
            travel_line(config, model, steps),
            *_memory_lines(config, model, sample, args),
            _time_line(config, model, sample, steps, args.device),
            *_example_lines(dataset, renderer),
        ]
    )


def marked(tree: Tree, renderer: Renderer) -> str:
    """A tree as text: each branch on a line of its own, what is supervised in double brackets."""
    lines = [_marked_segment(tree.prefix, renderer)]
    lines += [f"  ├ {_marked_segment(branch, renderer)}" for branch in tree.branches]
    return "\n".join(lines)


def _data_lines(
    config: SftConfig, dataset: EncodedExamples, sample: Sequence[EncodedExample], processor: Any, image_token: int
) -> list[str]:
    examples = dataset.examples
    kinds = ", ".join(f"{count:,} {name}" for name, count in Counter(map(dataset.scheme.kind, examples)).items())
    branches = sum(len(example.branches) for example in examples)
    segments = [s for example in sample for tree in example.trees for s in (tree.prefix, *tree.branches)]
    tokens = sum(len(segment.ids) for segment in segments) / len(sample)
    supervised = sum(label != IGNORE for segment in segments for label in segment.labels) / len(sample)
    images = [example.trees[0].prefix.ids.count(image_token) for example in sample]
    return [
        f"data: {len(examples):,} questions ({kinds}), {branches:,} branches, from {config.train_data}",
        f"tokens: about {tokens:,.0f} a question, {supervised:,.1f} of them supervised; "
        f"{tokens * len(examples):,.0f} to read each once (estimated from {len(sample)} questions)",
        f"tokens of an image: {min(images):,} at least, {sum(images) / len(images):,.0f} on average, "
        f"{max(images):,} at most",
        f"pictures: {images_in_words(processor)}",
    ]


def _batch_line(config: SftConfig, dataset: EncodedExamples, processes: int) -> str:
    questions = GlobalBatch(config.per_device_train_batch_size, config.gradient_accumulation_steps, processes).size
    rows = sum(max(len(example.branches), 1) for example in dataset.examples) / len(dataset.examples)
    return (
        f"batch: {questions:,} questions a step, {questions * rows:,.0f} rows on average (a question with one passage "
        "or prompt, or without)"
    )


def _memory_lines(
    config: SftConfig, model: nn.Module, sample: Sequence[EncodedExample], args: TrainingArguments
) -> list[str]:
    patch_size = Architecture.of(inner_model(model).config).patch_size
    batch = largest_batch(sample, config.per_device_train_batch_size, patch_size)
    predicted = forecast(config, model, batch, args.device, division(os.environ, args.world_size))
    head = f"memory of each device, estimated for a batch of the longest questions ({batch.tokens:,} tokens):"
    return [head, *table(predicted.parts(), predicted.available)]


def _time_line(
    config: SftConfig, model: nn.Module, sample: Sequence[EncodedExample], steps: int, device: torch.device
) -> str:
    divided = sharding(os.environ)
    if divided in ("zero3", "fsdp"):
        return f"time: not measured, since {divided} divides the model only when training begins"
    seconds = seconds_of_batch(config, model, sample, device, in_half=divided.startswith("zero"))
    if seconds is None:
        return "time: not measured, a batch does not fit"
    whole = duration(seconds * config.gradient_accumulation_steps * steps)
    return f"time: about {whole}, from one batch forward and backward here in {seconds:.2f} s"


def _example_lines(dataset: EncodedExamples, renderer: Renderer) -> list[str]:
    lines = []
    first = {dataset.scheme.kind(example): i for i, example in reversed(list(enumerate(dataset.examples)))}
    for name, index in sorted(first.items()):
        example = dataset[index]
        lines += [f"example {name}, {example.id}, ⟦supervised⟧:", marked(example.trees[0], renderer)]
    return lines


def _marked_segment(segment: Segment, renderer: Renderer) -> str:
    pieces = []
    pairs = zip(segment.ids, segment.labels, strict=True)
    for supervised, group in itertools.groupby(pairs, key=lambda pair: pair[1] != IGNORE):
        text = _decoded([token for token, _ in group], renderer)
        pieces.append(f"⟦{text}⟧" if supervised else text)
    return "".join(pieces).replace("\n", "⏎")


def _decoded(ids: Sequence[int], renderer: Renderer) -> str:
    """Tokens as text, a long run of one token as `<token>×count`."""
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

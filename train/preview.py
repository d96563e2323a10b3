"""What a dry run prints: how much there is to train, with what, and what the model reads and is asked to write."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence

from torch import nn

from reflectune.models.rendering import Renderer
from reflectune.models.tree import IGNORE, Segment, Tree
from reflectune.train.config import SftConfig
from reflectune.train.data import EncodedExamples, kind
from reflectune.train.parameters import count_by_tower

_SAMPLE = 64
"""Examples that are encoded to estimate the number of tokens."""
_LONG_RUN = 4
"""A token that is repeated this often (an image's placeholder) is shown once, with its count."""


def describe(config: SftConfig, model: nn.Module, dataset: EncodedExamples, renderer: Renderer, steps: int) -> str:
    """Data, tokens, parameters by tower, steps, and one example of each kind with its supervised spans marked."""
    return "\n".join(
        [
            *_data_lines(config, dataset),
            parameter_table(model),
            f"steps: {steps:,}, a checkpoint every {config.save_steps:,}, into {config.output_dir}",
            *_example_lines(dataset, renderer),
        ]
    )


def marked(tree: Tree, renderer: Renderer) -> str:
    """A tree as text: each branch on a line of its own, what is supervised in double brackets."""
    lines = [_marked_segment(tree.prefix, renderer)]
    lines += [f"  ├ {_marked_segment(branch, renderer)}" for branch in tree.branches]
    return "\n".join(lines)


def parameter_table(model: nn.Module) -> str:
    """Trainable parameters, whole and by tower."""
    counts = count_by_tower(model)
    trainable, total = (sum(getattr(c, kind) for c in counts.values()) for kind in ("trainable", "total"))
    lines = [f"  {tower}: {count.trainable:,} of {count.total:,}" for tower, count in counts.items()]
    return "\n".join([f"trainable parameters: {trainable:,} of {total:,}", *lines])


def _data_lines(config: SftConfig, dataset: EncodedExamples) -> list[str]:
    examples = dataset.examples
    kinds = ", ".join(f"{count:,} {name}" for name, count in Counter(map(kind, examples)).items())
    branches = sum(len(example.branches) for example in examples)
    step = max(len(examples) // _SAMPLE, 1)
    sample = [dataset[index].trees for index in range(0, len(examples), step)]
    segments = [[s for tree in trees for s in (tree.prefix, *tree.branches)] for trees in sample]
    tokens = sum(len(segment.ids) for row in segments for segment in row) / len(sample)
    supervised = sum(label != IGNORE for row in segments for s in row for label in s.labels) / len(sample)
    return [
        f"data: {len(examples):,} questions ({kinds}), {branches:,} branches, from {config.train_data}",
        f"tokens: about {tokens:,.0f} a question, {supervised:,.1f} of them supervised; "
        f"{tokens * len(examples):,.0f} to read each once (estimated from {len(sample)} questions)",
    ]


def _example_lines(dataset: EncodedExamples, renderer: Renderer) -> list[str]:
    lines = []
    first = {kind(example): i for i, example in reversed(list(enumerate(dataset.examples)))}
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

"""Micro-batches of a maximum number of tokens, and a balanced division of a step's examples among processes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from reflectune.core.images import read_header
from reflectune.core.paths import resolve_below
from reflectune.models.attention.tree import IGNORE, Tree
from reflectune.models.rendering.renderer import Renderer
from reflectune.train.data.examples import EncodedExample, TrainingData

_CHARACTERS = 4
"""Approximate characters per token in English."""


def micro_batches(lengths: Sequence[int], budget: int, at_least: int) -> list[list[int]]:
    """Divide examples into micro-batches of at most `budget` tokens, fullest first; a longer example is alone.

    Args:
        lengths: Tokens of each example.
        budget: Maximum tokens of a micro-batch.
        at_least: Minimum micro-batches, at most the number of examples.

    Returns:
        Indices of the examples of each micro-batch, ascending.
    """
    batches: list[list[int]] = []
    free: list[int] = []
    for index in sorted(range(len(lengths)), key=lambda index: -lengths[index]):
        fitting = next((number for number, room in enumerate(free) if lengths[index] <= room), None)
        if fitting is None:
            batches.append([index])
            free.append(budget - lengths[index])
        else:
            batches[fitting].append(index)
            free[fitting] -= lengths[index]
    while len(batches) < at_least:
        largest = max(batches, key=len)
        batches.append([largest.pop() for _ in range(len(largest) // 2)])
    return sorted((sorted(batch) for batch in batches), key=lambda batch: -sum(lengths[index] for index in batch))


def balance_by_tokens(tokens: Sequence[int], processes: int) -> list[int]:
    """Return an order of examples that gives each process the same number of examples, and similar numbers of tokens.

    Args:
        tokens: Approximate tokens of each example. The number of examples is a multiple of `processes`.
        processes: Number of equal parts.
    """
    shares: list[list[int]] = [[] for _ in range(processes)]
    sums = [0] * processes
    for index in sorted(range(len(tokens)), key=lambda index: -tokens[index]):
        open_shares = [number for number in range(processes) if len(shares[number]) < len(tokens) // processes]
        least = min(open_shares, key=lambda number: sums[number])
        shares[least].append(index)
        sums[least] += tokens[index]
    return [index for share in shares for index in sorted(share)]


def token_counter(data: TrainingData, renderer: Renderer, *, share_prefix: bool) -> Callable[[int], int]:
    """Return a function that estimates the tokens of a training example, image included, from its index.

    Images are not decoded.
    """
    processor: Any = renderer.processor

    @functools.lru_cache(maxsize=4096)
    def of_size(height: int, width: int) -> int:
        # transformers has no public name for it
        return int(processor._get_num_multimodal_tokens(image_sizes=[(height, width)])["num_image_tokens"][0])

    def count(index: int) -> int:
        example = data.examples[index]
        header = read_header(Path(resolve_below(example.image, data.image_roots)))
        repeated = 1 if share_prefix else max(len(example.branches), 1)
        text = sum(map(len, data.scheme.texts(example)))
        return repeated * of_size(header.height, header.width) + text // _CHARACTERS

    return count


def tokens_of(example: EncodedExample) -> int:
    """Count the tokens of an encoded example."""
    return sum(tree.length for tree in example.trees)


def join_step(examples: Sequence[EncodedExample]) -> dict[str, Any]:
    """Collate the examples of a step, which are divided into micro-batches later; `split_step` is the inverse.

    Images are concatenated: a worker needs a file descriptor for each tensor, and a process may open 1,024.
    """
    without_images = [
        replace(example, trees=tuple(replace(tree, vision={}) for tree in example.trees)) for example in examples
    ]
    images = [example.trees[0].vision for example in examples]  # all trees of an example share one image
    vision = {}
    for name in dict.fromkeys(name for image in images for name in image):
        parts = [image.get(name) for image in images]
        flat = torch.cat([part.flatten() for part in parts if part is not None])
        vision[name] = (flat, [None if part is None else part.shape for part in parts])
    return {
        "examples": without_images,
        "vision": vision,
        "tokens": sum(map(tokens_of, examples)),
        "left_out": sum(example.left_out for example in examples),
        "weight": sum(_weight(tree) for example in examples for tree in example.trees),
    }


def split_step(step: Mapping[str, Any]) -> list[EncodedExample]:
    """Return the examples that `join_step` has collated."""
    images: list[dict[str, Tensor]] = [{} for _ in step["examples"]]
    for name, (flat, shapes) in step["vision"].items():
        sizes = [0 if shape is None else shape.numel() for shape in shapes]
        for image, part, shape in zip(images, flat.split(sizes), shapes, strict=True):
            if shape is not None:
                image[name] = part.view(shape)
    return [
        replace(example, trees=tuple(replace(tree, vision=image) for tree in example.trees))
        for example, image in zip(step["examples"], images, strict=True)
    ]


def _weight(tree: Tree) -> float:
    """Sum the weights of a tree's supervised tokens. Its first token is never predicted."""
    segments = [(tree.prefix.labels[1:], tree.prefix.weights[1:]), *((b.labels, b.weights) for b in tree.branches)]
    pairs = (pair for labels, weights in segments for pair in zip(labels, weights, strict=True))
    return sum(weight for label, weight in pairs if label != IGNORE)


def questions_per_batch(budget: int, lengths: Sequence[int], size: int) -> int:
    """Return how many examples of median length fit into a budget, at least 1 and at most `size`."""
    median = sorted(lengths)[len(lengths) // 2]
    return min(max(budget // max(median, 1), 1), size)

"""Encoded examples into the tensors of one batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from transformers import PreTrainedModel

from reflectune.models.tree import Tree, TreeCollator
from reflectune.train.data import EncodedExample

_PART_COST = 256
"""What one more forward pass costs, in tokens: a batch is read in two parts only if that saves more padding."""


class Collator:
    """Lays the trees of a batch out as rows with a tree attention mask, and adds what the trainer's messages need.

    A visual question is one short row, a knowledge-based one with its passages a long row. Where padding the short ones
    would cost more than a second forward pass, they are a part of their own.

    Args:
        model: The model that reads the batches.
        may_cut: Whether a batch may have two parts. Not so if several processes train: some kinds of parallelism wait
            for each other in every forward pass, and would wait for ever.
    """

    def __init__(self, model: PreTrainedModel, *, may_cut: bool = True) -> None:
        self._collate, self._may_cut = TreeCollator(model), may_cut

    def __call__(self, examples: Sequence[EncodedExample]) -> dict[str, Any]:
        """The batch's `parts` (the model's inputs, `labels` and `weights` of some rows), `sample_ids` and `tokens`."""
        trees = [tree for example in examples for tree in example.trees]
        return {
            "parts": [self._collate(part) for part in (split_by_length(trees) if self._may_cut else [trees])],
            "sample_ids": [example.id for example in examples],
            "tokens": sum(tree.length for tree in trees),
        }


def split_by_length(trees: Sequence[Tree], part_cost: int = _PART_COST) -> list[list[Tree]]:
    """The trees in one part, or in a short and a long one if fewer tokens are read then, `part_cost` included."""
    ordered = sorted(trees, key=lambda tree: tree.length)
    longest = ordered[-1].length
    saved = [i * (longest - ordered[i - 1].length) for i in range(1, len(ordered))]  # by cutting before place i
    if not saved or max(saved) <= part_cost:
        return [list(trees)]
    cut = saved.index(max(saved)) + 1
    return [ordered[:cut], ordered[cut:]]

"""Encoded examples into the tensors of one batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from transformers import PreTrainedModel

from reflectune.models.tree import TreeCollator
from reflectune.train.data import EncodedExample


class Collator:
    """Packs the trees of a batch into one row without padding, and adds what the trainer's messages need.

    Args:
        model: The model that reads the batches.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self._collate = TreeCollator(model)

    def __call__(self, examples: Sequence[EncodedExample]) -> dict[str, Any]:
        """The model's inputs, `labels` and `weights` (see `TreeCollator`), `sample_ids`, and the number of `tokens`."""
        trees = [tree for example in examples for tree in example.trees]
        return {
            **self._collate(trees),
            "sample_ids": [example.id for example in examples],
            "tokens": sum(tree.length for tree in trees),
        }

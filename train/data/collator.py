"""Encoded examples into the tensors of one batch."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from transformers import PreTrainedModel

from reflectune.core.errors import UserError
from reflectune.models.attention.tree import TreeCollator
from reflectune.train.data.examples import EncodedExample


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
        sample_ids = [example.id for example in examples]
        with _naming(sample_ids):
            batch = self._collate(trees)
        return {**batch, "sample_ids": sample_ids, "tokens": sum(tree.length for tree in trees)}


@contextlib.contextmanager
def _naming(sample_ids: Sequence[str]) -> Iterator[None]:
    """Whatever fails inside says on which examples; what tells so itself, or a lack of memory, stays as it is."""
    try:
        yield
    except (UserError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        raise RuntimeError(f"{error} (on the training examples {', '.join(sample_ids)})") from error

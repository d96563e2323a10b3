"""Texts into batches of at most so many tokens, and back into the order that they came in."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import BatchEncoding, PreTrainedModel, PreTrainedTokenizerBase


def longest_input(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, max_length: int) -> int:
    """Tokens of a text beyond which it is cut: what was asked for, or what the model can read if that is less."""
    readable = getattr(model.config, "max_position_embeddings", None) or max_length
    return min(max_length, tokenizer.model_max_length, readable)


def token_batches(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, encoded: BatchEncoding, token_budget: int
) -> Iterator[tuple[list[int], dict[str, Tensor]]]:
    """Batches of similar length, longest first, none with more than `token_budget` tokens, padding included.

    Args:
        model: Which the inputs are for: they are put on its device.
        tokenizer: Which pads them.
        encoded: Token ids of every text, not padded. One text longer than the budget is a batch of its own.
        token_budget: Most tokens of a batch.

    Yields:
        Which texts are in the batch, and the model's inputs, each of shape (texts, tokens).
    """
    lengths = [len(ids) for ids in encoded["input_ids"]]
    order = sorted(range(len(lengths)), key=lambda text: -lengths[text])
    start = 0
    while start < len(order):
        size = max(1, token_budget // max(1, lengths[order[start]]))
        batch = order[start : start + size]
        rows = {key: [values[text] for text in batch] for key, values in encoded.items()}
        yield batch, dict(tokenizer.pad(rows, return_tensors="pt").to(model.device))
        start += size


def scatter(parts: Sequence[tuple[list[int], Tensor]], count: int) -> Tensor:
    """Rows of batches in the order of the texts, of shape (count, …).

    Args:
        parts: Of each batch: which texts, and their rows.
        count: How many texts there are.
    """
    places: Any = torch.tensor([text for batch, _ in parts for text in batch], dtype=torch.long)
    rows = torch.cat([part for _, part in parts])
    ordered = torch.empty((count, *rows.shape[1:]), dtype=rows.dtype)
    ordered[places] = rows
    return ordered

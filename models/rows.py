"""What the engine keeps of rows that a model has read, and how such rows are taken, cut, joined and stacked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers.cache_utils import DynamicCache, DynamicLayer

KeysValues = list[tuple[Tensor, Tensor]]
"""Keys and values of each layer, of shape (rows, heads, tokens, head size)."""


@dataclass(frozen=True)
class Rows:
    """Rows that the model has read, in one padded batch.

    Attributes:
        cache: Keys and values of the rows' tokens.
        real: Bool of shape (rows, tokens): tokens, and not padding.
        onward: The position that follows each row's last token, of shape (rows,).
        hidden: The last hidden state at each row's last token, of shape (rows, hidden size).
    """

    cache: KeysValues
    real: Tensor
    onward: Tensor
    hidden: Tensor

    def take(self, index: Tensor) -> Rows:
        """These rows, in this order, possibly repeated."""
        cache = [(keys[index], values[index]) for keys, values in self.cache]
        return Rows(cache, self.real[index], self.onward[index], self.hidden[index])


def as_cache(layers: KeysValues) -> DynamicCache:
    """A transformers cache that begins with these keys and values, without copying them."""
    cache = DynamicCache()
    for keys, values in layers:
        layer = DynamicLayer()
        layer.lazy_initialization(keys, values)
        layer.keys, layer.values = keys, values
        cache.layers.append(layer)
    return cache


def cached(cache: DynamicCache) -> KeysValues:
    """What a transformers cache holds."""
    layers: list[Any] = cache.layers
    return [(layer.keys, layer.values) for layer in layers]


def tail(rows: Rows, start: int) -> Rows:
    """Rows without their first `start` tokens, in memory of their own."""
    cache = [(keys[:, :, start:].clone(), values[:, :, start:].clone()) for keys, values in rows.cache]
    return Rows(cache, rows.real[:, start:].clone(), rows.onward, rows.hidden)


def join(before: Rows, after: Rows) -> Rows:
    """Rows whose tokens are those of `before`, then those of `after`; they stand where `after` stands."""
    cache = [
        (torch.cat([k0, k1], 2), torch.cat([v0, v1], 2))
        for (k0, v0), (k1, v1) in zip(before.cache, after.cache, strict=True)
    ]
    return Rows(cache, torch.cat([before.real, after.real], 1), after.onward, after.hidden)


def stack(parts: Sequence[Rows]) -> Rows:
    """Rows of several batches as one, padded to the longest."""
    if len(parts) == 1:
        return parts[0]
    length = max(part.real.shape[1] for part in parts)
    missing = [length - part.real.shape[1] for part in parts]
    padded = [
        [(F.pad(keys, (0, 0, 0, n)), F.pad(values, (0, 0, 0, n))) for keys, values in part.cache]
        for part, n in zip(parts, missing, strict=True)
    ]
    cache = [
        (torch.cat([keys for keys, _ in layer]), torch.cat([values for _, values in layer]))
        for layer in zip(*padded, strict=True)
    ]
    real = torch.cat([F.pad(part.real, (0, n)) for part, n in zip(parts, missing, strict=True)])
    onward, hidden = (torch.cat([getattr(part, name) for part in parts]) for name in ("onward", "hidden"))
    return Rows(cache, real, onward, hidden)

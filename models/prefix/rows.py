"""Rows that a model has read: levels of tokens, each kept once, however many rows of the next hang from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache, DynamicLayer

from reflectune.models.attention.shared import KeysValues, Shared


@dataclass(frozen=True)
class Level:
    """Tokens that were read together: N rows, padded on the right.

    Attributes:
        cache: Keys and values of each layer, (N, key heads, tokens, head size); empty if they were not kept.
        real: Bool of shape (N, tokens): tokens, and not padding.
    """

    cache: KeysValues
    real: Tensor

    def take(self, index: Tensor) -> Level:
        """A copy of some of its rows."""
        return Level(rows_of(self.cache, index), self.real[index])


@dataclass(frozen=True)
class Rows:
    """Rows that have been read, each a chain of one row of every level, the first level first.

    Attributes:
        levels: What was read, from the image down.
        where: For each level the row of it that each of these rows goes through, of shape (rows,).
        next_position: The position that follows each row's last token, of shape (rows,).
        hidden: The last hidden state at each row's last token, of shape (rows, hidden size).
    """

    levels: tuple[Level, ...]
    where: tuple[Tensor, ...]
    next_position: Tensor
    hidden: Tensor

    def __len__(self) -> int:
        return len(self.next_position)

    @property
    def last_level(self) -> Level:
        """The level that was read last, `levels[-1]`."""
        return self.levels[-1]

    def take(self, index: Tensor) -> Rows:
        """These rows, in this order, possibly repeated; nothing is copied."""
        return Rows(self.levels, tuple(row[index] for row in self.where), self.next_position[index], self.hidden[index])

    def compact(self) -> Rows:
        """The same rows; of a level of which they use less than half, a copy of what they use."""
        levels, where = [], []
        for level, row in zip(self.levels, self.where, strict=True):
            used, place = row.unique(return_inverse=True)
            small = 2 * len(used) <= len(level.real)
            levels.append(level.take(used) if small else level)
            where.append(place if small else row)
        return Rows(tuple(levels), tuple(where), self.next_position, self.hidden)

    def lengths(self) -> Tensor:
        """How many tokens each row has, padding left out, of shape (rows,)."""
        counts = [level.real.sum(1)[row] for level, row in zip(self.levels, self.where, strict=True)]
        return torch.stack(counts).sum(0)

    def shared(self) -> list[Shared]:
        """What more tokens of these rows see."""
        return [Shared.of(level.cache, level.real, row) for level, row in zip(self.levels, self.where, strict=True)]

    def under(self, level: Level, next_position: Tensor, hidden: Tensor) -> Rows:
        """The rows that come of reading one more level, one row of it under each of these rows."""
        row = torch.arange(len(next_position), device=next_position.device)
        return Rows((*self.levels, level), (*self.where, row), next_position, hidden)


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


def rows_of(layers: KeysValues, index: Tensor) -> KeysValues:
    """A copy of some rows of keys and values; those of each layer stay on the layer's device."""
    return [(keys[index.to(keys.device)], values[index.to(values.device)]) for keys, values in layers]


def kept_bytes(levels: Sequence[Level], device: torch.device | None = None) -> int:
    """Memory of the keys and values of levels, each counted once; of those on one device if it is given."""
    tensors = {id(tensor): tensor for level in levels for pair in level.cache for tensor in pair}
    return sum(tensor.nbytes for tensor in tensors.values() if device in (None, tensor.device))

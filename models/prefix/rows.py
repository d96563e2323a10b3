"""Rows that a model has read: levels of tokens, each stored once for all rows of the next level."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers.cache_utils import DynamicCache, DynamicLayer

from reflectune.models.attention.recurrence import States, joined_states, take_states
from reflectune.models.attention.shared import KeysValues, Shared


@dataclass(frozen=True)
class Level:
    """Tokens that were read together: N rows, padded on the right.

    Attributes:
        cache: Keys and values of each layer, (N, key heads, tokens, head size), of head size 0 in layers of linear
            attention; empty if they were dropped.
        real: Bool of shape (N, tokens); False at padding.
        states: States of linear attention after each row, by layer.
    """

    cache: KeysValues
    real: Tensor
    states: Mapping[int, States] = field(default_factory=dict)

    def take(self, index: Tensor) -> Level:
        """Return a copy of some of its rows."""
        states = {layer: take_states(own, index) for layer, own in self.states.items()}
        return Level(rows_of(self.cache, index), self.real[index], states)

    def dropped(self) -> Level:
        """Return the level without its keys, values and states."""
        return Level([], self.real)

    @classmethod
    def stacked(cls, levels: Sequence[Level]) -> Level:
        """Return the rows of all levels as one level, padded to the longest."""
        if len(levels) == 1:
            return levels[0]
        longest = max(level.real.shape[1] for level in levels)
        missing = [longest - level.real.shape[1] for level in levels]
        layers = zip(*(level.cache for level in levels), strict=True)
        cache = [
            tuple(
                torch.cat([F.pad(pair[side], (0, 0, 0, n)) for pair, n in zip(layer, missing, strict=True)])
                for side in range(2)
            )
            for layer in layers
        ]
        real = torch.cat([F.pad(level.real, (0, n)) for level, n in zip(levels, missing, strict=True)])
        states = {layer: joined_states([level.states[layer] for level in levels]) for layer in levels[0].states}
        return cls([(keys, values) for keys, values in cache], real, states)


@dataclass(frozen=True)
class Rows:
    """Rows that have been read, each a chain of one row of every level, first level first.

    Attributes:
        levels: Levels from the image down.
        where: For each level the index of its row in each chain, shape (rows,).
        next_position: Position after each row's last token, shape (rows,).
        hidden: Last hidden state at each row's last token, shape (rows, hidden size).
    """

    levels: tuple[Level, ...]
    where: tuple[Tensor, ...]
    next_position: Tensor
    hidden: Tensor

    def __len__(self) -> int:
        return len(self.next_position)

    @property
    def last_level(self) -> Level:
        """Last level that was read."""
        return self.levels[-1]

    def take(self, index: Tensor) -> Rows:
        """Return these rows, in this order, possibly repeated, without copying."""
        return Rows(self.levels, tuple(row[index] for row in self.where), self.next_position[index], self.hidden[index])

    def compact(self) -> Rows:
        """Return the same rows; a level that they use less than half is replaced by a copy of the used part."""
        levels, where = [], []
        for level, row in zip(self.levels, self.where, strict=True):
            used, place = row.unique(return_inverse=True)
            small = 2 * len(used) <= len(level.real)
            levels.append(level.take(used) if small else level)
            where.append(place if small else row)
        return Rows(tuple(levels), tuple(where), self.next_position, self.hidden)

    def lengths(self) -> Tensor:
        """Return the number of tokens of each row without padding, shape (rows,)."""
        counts = [level.real.sum(1)[row] for level, row in zip(self.levels, self.where, strict=True)]
        return torch.stack(counts).sum(0)

    def shared(self) -> list[Shared]:
        """Return the tokens that a continuation of these rows sees."""
        return [Shared.of(level.cache, level.real, row) for level, row in zip(self.levels, self.where, strict=True)]

    def nothing_written(self) -> Level:
        """Return a level of no tokens under these rows, with a copy of their states."""
        states = {layer: take_states(own, self.where[-1]) for layer, own in self.last_level.states.items()}
        return Level([], self.last_level.real.new_ones(len(self), 0), states)

    def extended(self, level: Level, next_position: Tensor, hidden: Tensor) -> Rows:
        """Return the rows extended by one level, one row of it for each of these rows."""
        row = torch.arange(len(next_position), device=next_position.device)
        return Rows((*self.levels, level), (*self.where, row), next_position, hidden)


def as_cache(layers: KeysValues) -> DynamicCache:
    """Return a transformers cache that begins with these keys and values, without copying them."""
    cache = DynamicCache()
    for keys, values in layers:
        layer = DynamicLayer()
        layer.lazy_initialization(keys, values)
        layer.keys, layer.values = keys, values
        cache.layers.append(layer)
    return cache


def cached(cache: DynamicCache) -> KeysValues:
    """Return the keys and values of a transformers cache."""
    layers: list[Any] = cache.layers
    like = next(layer for layer in layers if layer.keys is not None)
    empty = like.keys[..., :0]  # of linear attention, which has none
    return [(empty, empty) if layer.keys is None else (layer.keys, layer.values) for layer in layers]


def rows_of(layers: KeysValues, index: Tensor) -> KeysValues:
    """Return a copy of some rows of keys and values, on each layer's device."""
    return [(keys[index.to(keys.device)], values[index.to(values.device)]) for keys, values in layers]


def kept_bytes(levels: Sequence[Level], device: torch.device | None = None) -> int:
    """Return the bytes of the levels' keys, values and states, each counted once; only those on `device` if given."""
    pairs = [pair for level in levels for pair in (*level.cache, *level.states.values())]
    tensors = {id(tensor): tensor for pair in pairs for tensor in pair}
    return sum(tensor.nbytes for tensor in tensors.values() if device in (None, tensor.device))

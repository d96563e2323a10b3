"""Rows that a model has read, as levels of tokens: a level is stored once for all rows that share it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers.cache_utils import DynamicCache, DynamicLayer

from reflectune.models.attention.recurrence import States, concat_states, select_states
from reflectune.models.attention.shared import KeysValues, Shared


@dataclass(frozen=True)
class Level:
    """Tokens that were read together: N rows, padded on the right.

    Attributes:
        cache: Keys and values of each layer, (N, key heads, tokens, head size); head size is 0 in layers of linear
            attention. Empty after `dropped`.
        real: Bool of shape (N, tokens); False at padding.
        states: States of linear attention after each row, by layer.
    """

    cache: KeysValues
    real: Tensor
    states: Mapping[int, States] = field(default_factory=dict)

    def take(self, index: Tensor) -> Level:
        """Return a copy of some of its rows."""
        states = {layer: select_states(layer_states, index) for layer, layer_states in self.states.items()}
        return Level(select_rows(self.cache, index), self.real[index], states)

    def dropped(self) -> Level:
        """Return the level without its keys, values and states."""
        return Level([], self.real)

    @classmethod
    def stack(cls, levels: Sequence[Level]) -> Level:
        """Concatenate the rows of several levels, padded to the longest."""
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
        states = {layer: concat_states([level.states[layer] for level in levels]) for layer in levels[0].states}
        return cls([(keys, values) for keys, values in cache], real, states)


@dataclass(frozen=True)
class Rows:
    """Rows that have been read. Each is a chain of one row of every level.

    Attributes:
        levels: Levels, beginning with the image's.
        where: For each level, the index of its row in each chain, shape (rows,).
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
        """Return the rows with these indices, which may repeat, without copying."""
        return Rows(self.levels, tuple(row[index] for row in self.where), self.next_position[index], self.hidden[index])

    def compact(self) -> Rows:
        """Return the same rows; where they use at most half of a level, it is replaced by a copy of the used rows."""
        levels, where = [], []
        for level, row in zip(self.levels, self.where, strict=True):
            used, index = row.unique(return_inverse=True)
            is_sparse = 2 * len(used) <= len(level.real)
            levels.append(level.take(used) if is_sparse else level)
            where.append(index if is_sparse else row)
        return Rows(tuple(levels), tuple(where), self.next_position, self.hidden)

    def lengths(self) -> Tensor:
        """Return the number of tokens of each row without padding, shape (rows,)."""
        counts = [level.real.sum(1)[row] for level, row in zip(self.levels, self.where, strict=True)]
        return torch.stack(counts).sum(0)

    def shared(self) -> list[Shared]:
        """Return the cached tokens that a continuation of these rows sees."""
        return [Shared.of(level.cache, level.real, row) for level, row in zip(self.levels, self.where, strict=True)]

    def empty_level(self) -> Level:
        """Return a level without tokens after these rows, with a copy of their states."""
        states = {
            layer: select_states(layer_states, self.where[-1]) for layer, layer_states in self.last_level.states.items()
        }
        return Level([], self.last_level.real.new_ones(len(self), 0), states)

    def extended(self, level: Level, next_position: Tensor, hidden: Tensor) -> Rows:
        """Return the rows extended by one level, which has one row for each of them."""
        row = torch.arange(len(next_position), device=next_position.device)
        return Rows((*self.levels, level), (*self.where, row), next_position, hidden)


def to_dynamic_cache(layers: KeysValues) -> DynamicCache:
    """Return a transformers cache with these keys and values, without copying them."""
    cache = DynamicCache()
    for keys, values in layers:
        layer = DynamicLayer()
        layer.lazy_initialization(keys, values)
        layer.keys, layer.values = keys, values
        cache.layers.append(layer)
    return cache


def from_dynamic_cache(cache: DynamicCache) -> KeysValues:
    """Return the keys and values of a transformers cache."""
    layers: list[Any] = cache.layers
    like = next(layer for layer in layers if layer.keys is not None)
    empty = like.keys[..., :0]  # for layers of linear attention
    return [(empty, empty) if layer.keys is None else (layer.keys, layer.values) for layer in layers]


def select_rows(layers: KeysValues, index: Tensor) -> KeysValues:
    """Return a copy of some rows of keys and values."""
    return [(keys[index.to(keys.device)], values[index.to(values.device)]) for keys, values in layers]


def level_bytes(levels: Sequence[Level], device: torch.device | None = None) -> int:
    """Return the bytes of the levels' keys, values and states; only those on `device` if it is given."""
    pairs = [pair for level in levels for pair in (*level.cache, *level.states.values())]
    tensors = {id(tensor): tensor for pair in pairs for tensor in pair}
    return sum(tensor.nbytes for tensor in tensors.values() if device in (None, tensor.device))

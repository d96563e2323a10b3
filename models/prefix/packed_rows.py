"""Trees in packed rows: the rows, the ends of their prefixes and branches, and the work of a pass."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from reflectune.models.attention.packed import PackedSegment, Span, moved, padded
from reflectune.models.attention.recurrence import Generation, PackedRecurrence, StatesByLayer
from reflectune.models.attention.shared import KeysValues
from reflectune.models.rendering.renderer import Rendered


@dataclass
class PackedRow:
    """A row of tokens, segment by segment.

    Attributes:
        cache: Keys and values of each layer, (1, key heads, tokens, size); copies of earlier ones come first. Empty
            before the row is read, and after they were dropped.
        past: Number of the earlier keys.
        states: Hidden states of the row's own tokens, (tokens, hidden size).
        ids: Token ids.
        positions: Positions of each segment, (1 or 3, tokens).
        segments: Segments, as `block_mask` takes them.
        linear: States of linear attention after each segment, by layer. Empty in other models, before the row is
            read, and after they were dropped.
    """

    cache: KeysValues
    past: int
    states: Tensor = field(default_factory=lambda: torch.empty(0))
    ids: list[int] = field(default_factory=list)
    positions: list[np.ndarray] = field(default_factory=list)
    segments: list[PackedSegment] = field(default_factory=list)
    linear: StatesByLayer = field(default_factory=dict)

    def add(self, ids: Sequence[int], seen: tuple[Span, ...], positions: np.ndarray) -> Spot:
        """Add a segment that sees earlier ranges, and return its end."""
        first = self.past + len(self.ids)
        self.ids += ids
        self.positions.append(positions)
        self.segments.append((len(ids), seen))
        return Spot(self, (*seen, (first, first + len(ids))), int(positions[0, -1]) + 1, len(self.segments) - 1)

    @property
    def nbytes(self) -> int:
        """Bytes of keys, values and states of linear attention."""
        return sum(tensor.nbytes for pair in (*self.cache, *self.linear.values()) for tensor in pair)

    def drop(self) -> None:
        """Drop keys, values and states of linear attention."""
        self.cache.clear()
        self.linear.clear()


@dataclass(frozen=True)
class Spot:
    """End of a prefix or branch, from which reading goes on.

    Attributes:
        row: The row that it was read in.
        seen: Ranges of the row's keys up to here, its own tokens last.
        next_position: Position after its last token.
        segment: Number of its own tokens' segment in the row.
    """

    row: PackedRow
    seen: tuple[Span, ...]
    next_position: int
    segment: int = 0

    @property
    def length(self) -> int:
        """Number of tokens from the beginning."""
        return sum(end - first for first, end in self.seen)

    @property
    def states(self) -> Tensor:
        """Hidden states of its own tokens, (tokens, hidden size)."""
        first, end = self.seen[-1]
        return self.row.states[first - self.row.past : end - self.row.past]


@dataclass(frozen=True)
class TreePart:
    """Work of a pass: a prefix, branches on it, or both.

    Attributes:
        parent: End of the tokens before the prefix, or before the branches where none is read.
        prefix: Prefix to read.
        branches: Token ids of the branches.
    """

    parent: Spot | None
    prefix: Rendered | None
    branches: Sequence[Sequence[int]] = ()

    @property
    def tokens(self) -> int:
        """Number of tokens to read."""
        return (len(self.prefix.ids) if self.prefix else 0) + sum(map(len, self.branches))

    @property
    def segments(self) -> int:
        """Number of segments to read."""
        return len(self.branches) + (self.prefix is not None)

    @property
    def is_divisible(self) -> bool:
        """True if several passes can read it."""
        return self.segments > 1


Ends = tuple[Spot | None, list[Spot]]
"""End of a part's prefix, if it has one, and of its branches."""


@dataclass(frozen=True)
class LaidOut:
    """A row that is ready to be computed.

    Attributes:
        ends: The ends of its parts, whose states, keys and values come with the computation.
        row: The row.
        parents: Ends of the tokens before it, whose keys and values come first.
        mask: From `block_mask`.
        inputs: Arguments of the language model.
        recurrence: Of a model with linear attention.
        firsts: Ends that its first generation continues, None at the beginning of a sequence.
    """

    ends: list[Ends]
    row: PackedRow
    parents: list[Spot]
    mask: BlockMask
    inputs: dict[str, Any]
    recurrence: PackedRecurrence | None = None
    firsts: Sequence[Spot | None] = ()


@dataclass(frozen=True)
class OpenedTrees:
    """Questions whose prefixes are read when they are needed.

    Attributes:
        prefixes: Images and prefixes.
        shared: Key, image prefix and suffix of questions whose image is shared.
        spots: Ends of the prefixes that have been read, by question.
    """

    prefixes: Sequence[Rendered]
    shared: Mapping[int, tuple[str, Rendered, list[int]]]
    spots: dict[int, Spot] = field(default_factory=dict)


def ranges_of(lengths: Sequence[int]) -> tuple[list[Span], int]:
    """Return the range of each of some spots whose keys lie one after another, and the number of keys with padding."""
    ends = list(itertools.accumulate(lengths))
    return list(zip([0, *ends[:-1]], ends, strict=False)), padded(ends[-1]) if ends else 0


def recurrence_of(row: PackedRow, parents: Sequence[Spot | None], device: torch.device) -> PackedRecurrence:
    """Return the order in which linear attention reads a row's segments, without the states before them.

    Args:
        row: The row.
        parents: The end that each segment continues, None at the beginning of a sequence.
        device: Device of the indices.
    """
    numbers = list[int]()
    for parent in parents:
        numbers.append(numbers[parent.segment] + 1 if parent is not None and parent.row is row else 0)
    groups = [[segment for segment, own in enumerate(numbers) if own == n] for n in range(max(numbers) + 1)]
    place = {segment: k for group in groups for k, segment in enumerate(group)}
    counts = np.array([count for count, _ in row.segments])
    starts = np.cumsum(counts) - counts
    generations: list[Generation] = []
    for group in groups:
        offsets = np.arange(counts[group].max())
        index = np.where(offsets < counts[group, None], starts[group, None] + offsets, padded(len(row.ids)))
        before = [place[spot.segment] for segment in group if (spot := parents[segment]) is not None and generations]
        generations.append(
            (moved(torch.from_numpy(index), device), moved(torch.tensor(before), device) if generations else None)
        )
    order = torch.tensor([*itertools.chain.from_iterable(groups)]).argsort()
    return PackedRecurrence(generations, moved(order, device))


def continued_states(spots: Sequence[Spot | None]) -> StatesByLayer:
    """Return the states of linear attention that rows continue, by layer: zeros for None, nothing if all are None."""
    ends = [(place, spot) for place, spot in enumerate(spots) if spot is not None]
    rows = [row for row in {id(spot.row): spot.row for _, spot in ends}.values() if row.linear]
    continued: StatesByLayer = {}
    for row in rows:
        own = torch.tensor([(place, spot.segment) for place, spot in ends if spot.row is row])
        places, segments = moved(own, next(iter(row.linear.values()))[0].device).T
        for layer, states in row.linear.items():
            if layer not in continued:
                inputs, state = (side.new_zeros(len(spots), *side.shape[1:]) for side in states)
                continued[layer] = inputs, state
            for side, found in zip(continued[layer], states, strict=True):
                side.index_copy_(0, places, found[segments])
    return continued

"""Packed rows, the cached sequences that end in them, and the parts of trees that a pass reads."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from reflectune.models.attention.packed import PackedSegment, Span, round_up_to_blocks, to_device
from reflectune.models.attention.recurrence import Generation, PackedRecurrence, StatesByLayer
from reflectune.models.attention.shared import KeysValues
from reflectune.models.rendering.renderer import Rendered


@dataclass
class PackedRow:
    """A row of tokens, segment by segment.

    Attributes:
        cache: Keys and values of each layer, (1, key heads, tokens, size), beginning with copies of earlier ones. Empty
            before the row is read, and after `drop`.
        past: Number of the earlier keys.
        states: Hidden states of the row's tokens, (tokens, hidden size).
        ids: Token ids.
        positions: Positions of each segment, (1 or 3, tokens).
        segments: Segments for `block_mask`.
        linear: States of linear attention after each segment, by layer. Empty in models without it, before the row is
            read, and after `drop`.
    """

    cache: KeysValues
    past: int
    states: Tensor = field(default_factory=lambda: torch.empty(0))
    ids: list[int] = field(default_factory=list)
    positions: list[np.ndarray] = field(default_factory=list)
    segments: list[PackedSegment] = field(default_factory=list)
    linear: StatesByLayer = field(default_factory=dict)

    def add(self, ids: Sequence[int], seen: tuple[Span, ...], positions: np.ndarray) -> CachedSequence:
        """Append a segment that sees earlier ranges, and return the sequence that it ends."""
        first = self.past + len(self.ids)
        self.ids += ids
        self.positions.append(positions)
        self.segments.append((len(ids), seen))
        return CachedSequence(
            self, (*seen, (first, first + len(ids))), int(positions[0, -1]) + 1, len(self.segments) - 1
        )

    @property
    def nbytes(self) -> int:
        """Bytes of keys, values and states of linear attention."""
        return sum(tensor.nbytes for pair in (*self.cache, *self.linear.values()) for tensor in pair)

    def drop(self) -> None:
        """Drop keys, values and states of linear attention."""
        self.cache.clear()
        self.linear.clear()


@dataclass(frozen=True)
class CachedSequence:
    """A prefix, or a prefix with a branch, whose keys and values are in a packed row; it can be continued.

    Attributes:
        row: The row that it was read in.
        seen: Ranges of the row's keys that make up the sequence; the last one is its last segment.
        next_position: Position after its last token.
        segment: Index of its last segment in the row.
    """

    row: PackedRow
    seen: tuple[Span, ...]
    next_position: int
    segment: int = 0

    @property
    def length(self) -> int:
        """Number of tokens of the sequence."""
        return sum(end - first for first, end in self.seen)

    @property
    def states(self) -> Tensor:
        """Hidden states of its last segment, (tokens, hidden size)."""
        first, end = self.seen[-1]
        return self.row.states[first - self.row.past : end - self.row.past]


@dataclass(frozen=True)
class TreePart:
    """Part of a tree to read in a pass: a prefix, branches, or both.

    Attributes:
        parent: Sequence before the prefix; without a prefix, the sequence before the branches.
        prefix: Prefix to read.
        branches: Token ids of the branches.
    """

    parent: CachedSequence | None
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


Ends = tuple[CachedSequence | None, list[CachedSequence]]
"""Sequence of a part's prefix, if it has one, and those of its branches."""


@dataclass(frozen=True)
class RowPlan:
    """A row that is ready to be computed.

    Attributes:
        ends: Sequences of its parts; their states, keys and values are filled in by the computation.
        row: The row.
        parents: Sequences whose keys and values come before the row.
        mask: From `block_mask`.
        inputs: Arguments of the language model.
        recurrence: Generations of segments, for a model with linear attention.
        firsts: Sequences that the first generation continues, None at the beginning of a sequence.
    """

    ends: list[Ends]
    row: PackedRow
    parents: list[CachedSequence]
    mask: BlockMask
    inputs: dict[str, Any]
    recurrence: PackedRecurrence | None = None
    firsts: Sequence[CachedSequence | None] = ()


@dataclass(frozen=True)
class OpenedTrees:
    """Questions whose prefixes are read on demand.

    Attributes:
        prefixes: Rendered prefixes with their images.
        shared: Key, image prefix and suffix of the questions whose image is shared.
        sequences: Prefixes that have been read, by question.
    """

    prefixes: Sequence[Rendered]
    shared: Mapping[int, tuple[str, Rendered, list[int]]]
    sequences: dict[int, CachedSequence] = field(default_factory=dict)


def consecutive_ranges(lengths: Sequence[int]) -> tuple[list[Span], int]:
    """Return the key range of each of several concatenated sequences, and the padded number of keys."""
    ends = list(itertools.accumulate(lengths))
    return list(zip([0, *ends[:-1]], ends, strict=False)), round_up_to_blocks(ends[-1]) if ends else 0


def plan_recurrence(row: PackedRow, parents: Sequence[CachedSequence | None], device: torch.device) -> PackedRecurrence:
    """Return the generations in which linear attention reads a row's segments; initial states are set later.

    Args:
        row: The row.
        parents: The sequence that each segment continues, None at the beginning of a sequence.
        device: Device of the indices.
    """
    depths = list[int]()
    for parent in parents:
        depths.append(depths[parent.segment] + 1 if parent is not None and parent.row is row else 0)
    groups = [[segment for segment, depth in enumerate(depths) if depth == n] for n in range(max(depths) + 1)]
    index_in_group = {segment: k for group in groups for k, segment in enumerate(group)}
    counts = np.array([count for count, _ in row.segments])
    starts = np.cumsum(counts) - counts
    generations: list[Generation] = []
    for group in groups:
        offsets = np.arange(counts[group].max())
        index = np.where(offsets < counts[group, None], starts[group, None] + offsets, round_up_to_blocks(len(row.ids)))
        parent_indices = None
        if generations:
            group_parents = [parents[segment] for segment in group]
            numbers = [index_in_group[parent.segment] for parent in group_parents if parent is not None]
            parent_indices = to_device(torch.tensor(numbers), device)
        generations.append((to_device(torch.from_numpy(index), device), parent_indices))
    order = torch.tensor([*itertools.chain.from_iterable(groups)]).argsort()
    return PackedRecurrence(generations, to_device(order, device))


def continued_states(sequences: Sequence[CachedSequence | None]) -> StatesByLayer:
    """Return linear-attention states at the end of sequences, by layer: zeros for None, {} if all are None."""
    present = [(index, sequence) for index, sequence in enumerate(sequences) if sequence is not None]
    rows = [row for row in {id(sequence.row): sequence.row for _, sequence in present}.values() if row.linear]
    continued: StatesByLayer = {}
    for row in rows:
        pairs = torch.tensor([(index, sequence.segment) for index, sequence in present if sequence.row is row])
        indices, segments = to_device(pairs, next(iter(row.linear.values()))[0].device).T
        for layer, states in row.linear.items():
            if layer not in continued:
                inputs, state = (side.new_zeros(len(sequences), *side.shape[1:]) for side in states)
                continued[layer] = inputs, state
            for target, source in zip(continued[layer], states, strict=True):
                target.index_copy_(0, indices, source[segments])
    return continued

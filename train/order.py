"""The order in which training reads its examples: shuffled anew each epoch, similar lengths together."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence

import torch
from torch.utils.data import Sampler

_POOL_BATCHES = 32
"""Batches that are sorted by length together: enough to pad little, few enough to stay random."""


class TrainingOrder(Sampler[int]):
    """Indices of one epoch; a pure function of the arguments and the epoch, so that a resumed run reads the same.

    Every batch has the same mixture of kinds (e.g. knowledge-based and visual questions). A batch of one kind alone
    would pad less, but its gradient would push the gate one way.

    Processes share an epoch by turns, so its end is filled up until all have equally many examples. A filler is a
    negative index: `~i` stands for example i, read once more and counted as nothing. (accelerate, left alone, would
    count it, and two processes would train other weights than one.)

    Args:
        lengths: Of each example, in any unit.
        kinds: Of each example.
        batch_size: Examples that one optimiser step reads, over all processes.
        seed: Of the shuffles.
        group_by_length: Whether to put examples of a kind and of similar length into the same batch.
        multiple_of: Examples that all processes together read at a time; an epoch is filled up to a multiple of it.
    """

    def __init__(
        self,
        lengths: Sequence[int],
        kinds: Sequence[Hashable],
        *,
        batch_size: int,
        seed: int,
        group_by_length: bool = True,
        multiple_of: int = 1,
    ) -> None:
        self.lengths, self.kinds = lengths, kinds
        self.fillers = -len(lengths) % multiple_of
        self.batch_size, self.seed, self.group_by_length = batch_size, seed, group_by_length
        self.epoch = 0

    def start_epoch(self, epoch: int) -> None:
        """Choose the epoch whose order the next iteration gives.

        Not called `set_epoch`: accelerate calls that on some nestings of its loaders and not on others.
        """
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.lengths) + self.fillers

    def __iter__(self) -> Iterator[int]:
        order = self._order(torch.Generator().manual_seed(self.seed * 1_000_003 + self.epoch))
        yield from order
        yield from (~index for index in itertools.islice(itertools.cycle(order), self.fillers))

    def _order(self, generator: torch.Generator) -> list[int]:
        order = torch.randperm(len(self.lengths), generator=generator).tolist()
        if not self.group_by_length:
            return order
        size = self.batch_size * _POOL_BATCHES
        pools = [order[start : start + size] for start in range(0, len(order), size)]
        return [index for pool in pools for index in self._grouped(pool, generator)]

    def _grouped(self, pool: list[int], generator: torch.Generator) -> list[int]:
        """The pool in batches of similar lengths and equal mixture, in random order; a short batch comes last."""
        by_kind: dict[Hashable, list[int]] = defaultdict(list)
        for index in sorted(pool, key=lambda index: self.lengths[index]):
            by_kind[self.kinds[index]].append(index)
        # An item's place among its kind, from 0 to 1: merging by it lets all kinds grow from short to long in step.
        places = {item: (i + 0.5) / len(items) for items in by_kind.values() for i, item in enumerate(items)}
        merged = sorted(pool, key=lambda index: (places[index], index))
        batches = [merged[i : i + self.batch_size] for i in range(0, len(merged), self.batch_size)]
        full = len(merged) // self.batch_size
        shuffled = [batches[i] for i in torch.randperm(full, generator=generator).tolist()] + batches[full:]
        return [index for batch in shuffled for index in batch]

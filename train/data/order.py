"""The order in which training reads its examples: shuffled again each epoch, similar lengths together."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, Protocol

import torch
from torch.utils.data import Sampler
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from reflectune.train.data.examples import TrainingData
from reflectune.train.data.global_batch import GlobalBatch
from reflectune.train.data.micro_batches import equal_shares
from reflectune.train.data.mixture import epoch_reads

_POOL_BATCHES = 32
"""Batches that are sorted by length together: enough to pad little, few enough to stay random."""


class TrainingOrder(Sampler[int]):
    """Indices of one epoch, as a pure function of the arguments and the epoch: a resumed run reads the same.

    Every batch has the same mixture of kinds (e.g. knowledge-based and visual questions). A batch of one kind would
    pad less, but its gradient would push the gate one way.

    Processes share an epoch by turns, so its end is filled up until all have equally many examples. A filler is a
    negative index: `~i` stands for example i with no weight. (accelerate would give it its weight, and two processes
    would train other weights than one.)

    Args:
        lengths: Length of each example, in any unit.
        kinds: Kind of each example.
        batch_size: Examples of an optimiser step, over all processes.
        parts: For each data set, in the order of the examples, its number of examples and the reads of each in an
            epoch: 2 for two, 0.5 for a half of them, drawn again each epoch. None for one data set, read once.
        multiple_of: Examples that all processes read at a time; an epoch is filled up to a multiple of it.
        share: Puts an optimiser step's examples into the order in which processes share them; None leaves it.
    """

    def __init__(
        self,
        lengths: Sequence[int],
        kinds: Sequence[Hashable],
        *,
        batch_size: int,
        seed: int,
        parts: Sequence[tuple[int, float]] | None = None,
        multiple_of: int = 1,
        share: Callable[[list[int]], list[int]] | None = None,
    ) -> None:
        super().__init__()
        self.lengths, self.kinds = lengths, kinds
        self.parts = [(len(lengths), 1.0)] if parts is None else parts
        self.examples = sum(epoch_reads(count, weight) for count, weight in self.parts)
        self.fillers = -self.examples % multiple_of
        self.batch_size, self.seed, self.epoch, self._share = batch_size, seed, 0, share

    def start_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iteration."""
        # not called `set_epoch`: accelerate calls that on some nestings of its loaders and not on others
        self.epoch = epoch

    def __len__(self) -> int:
        return self.examples + self.fillers

    def __iter__(self) -> Iterator[int]:
        order = self._order(torch.Generator().manual_seed(self.seed * 1_000_003 + self.epoch))
        order += [~index for index in itertools.islice(itertools.cycle(order), self.fillers)]
        if self._share is None:
            yield from order
        else:
            for start in range(0, len(order), self.batch_size):
                yield from self._share(order[start : start + self.batch_size])

    def _order(self, generator: torch.Generator) -> list[int]:
        read = self._read(generator)
        order = [read[i] for i in torch.randperm(len(read), generator=generator).tolist()]
        size = self.batch_size * _POOL_BATCHES
        pools = [order[start : start + size] for start in range(0, len(order), size)]
        return [index for pool in pools for index in self._grouped(pool, generator)]

    def _read(self, generator: torch.Generator) -> list[int]:
        """Return the indices that an epoch reads: `int(weight)` times each, and a random rest of a data set."""
        read: list[int] = []
        start = 0
        for count, weight in self.parts:
            indices = range(start, start + count)
            read += list(indices) * int(weight)
            if rest := epoch_reads(count, weight) - count * int(weight):
                read += [indices[i] for i in torch.randperm(count, generator=generator)[:rest].tolist()]
            start += count
        return read

    def _grouped(self, pool: list[int], generator: torch.Generator) -> list[int]:
        """Return the pool in batches of similar lengths and equal mixture, in random order, a short one last."""
        copies: Counter[int] = Counter()
        groups: dict[tuple[Hashable, int], list[int]] = defaultdict(list)
        for index in sorted(pool, key=lambda index: self.lengths[index]):
            groups[self.kinds[index], copies[index]].append(index)
            copies[index] += 1
        # Merging by an item's relative position in its group, from 0 to 1, lets all kinds grow from short to long in
        # step. A second copy of an example is shifted, so that it isn't in the batch of the first.
        positions = []
        for (_, copy), items in groups.items():
            shift = copy / max(copies.values())
            positions += [((i + 0.5) / len(items) + shift, item) for i, item in enumerate(items)]
        merged = [item for _, item in sorted((position % 1, item) for position, item in positions)]
        batches = [merged[i : i + self.batch_size] for i in range(0, len(merged), self.batch_size)]
        full = len(merged) // self.batch_size
        shuffled = [batches[i] for i in torch.randperm(full, generator=generator).tolist()] + batches[full:]
        return [index for batch in shuffled for index in batch]


class EpochOrder(Protocol):
    """An order that differs from epoch to epoch."""

    def start_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iteration."""


class FollowEpochs(TrainerCallback):
    """Starts each epoch of an order, in a resumed run too.

    Args:
        order: The order of the trainer.
    """

    def __init__(self, order: EpochOrder) -> None:
        super().__init__()
        self._order = order

    def on_epoch_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Start the epoch that the trainer's state is in."""
        self._order.start_epoch(int(state.epoch or 0))


def training_order(
    data: TrainingData,
    batch: GlobalBatch,
    *,
    seed: int,
    tokens: Callable[[int], int] | None,
) -> TrainingOrder:
    """Return the order of training data; every batch has the same mixture of data sets, and of the kinds of each.

    Args:
        tokens: Estimates an example's tokens, to give each process as many in a step; None for shares by turns.
    """
    numbers = [number for number, (count, _) in enumerate(data.parts) for _ in range(count)]

    def share(step: list[int]) -> list[int]:
        assert tokens is not None
        counts = [tokens(index if index >= 0 else ~index) for index in step]
        return [step[place] for place in equal_shares(counts, batch.processes)]

    return TrainingOrder(
        data.lengths,
        [*zip(numbers, data.kinds, strict=True)],
        batch_size=batch.size,
        seed=seed,
        parts=data.parts,
        multiple_of=batch.at_a_time,
        share=share if tokens and batch.processes > 1 else None,
    )

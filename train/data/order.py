"""Order of the training examples: reshuffled each epoch, with similar lengths together."""

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
from reflectune.train.data.micro_batches import balance_by_tokens
from reflectune.train.data.mixture import epoch_reads

_POOL_BATCHES = 32
"""Batches that are sorted by length together: enough for little padding, few enough to stay random."""


class TrainingOrder(Sampler[int]):
    """Indices of one epoch, as a pure function of the arguments and the epoch, so a resumed run reads the same.

    Every batch has the same mixture of kinds (e.g. knowledge-based and visual questions). A batch of one kind would
    pad less, but its gradient would push the gate one way.

    Processes take turns, so the end of an epoch is filled up until all have the same number of examples. A filler is a
    negative index: `~i` is example i with zero weight. (accelerate's fillers have full weight, so the trained weights
    would depend on the number of processes.)

    Args:
        lengths: Length of each example, in any unit.
        kinds: Kind of each example.
        batch_size: Examples of an optimiser step, over all processes.
        parts: For each data set, in the order of the examples, its number of examples and how often an epoch reads
            each; 0.5 reads a random half, redrawn each epoch. None for one data set that is read once.
        multiple_of: Examples that all processes read at a time; an epoch is filled up to a multiple of it.
        share: Reorders the examples of an optimiser step to divide them among processes; None keeps their order.
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
        """Set the epoch of the next iteration."""
        # not named `set_epoch`, which accelerate calls on some of its nested loaders only
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
        """Return the indices that an epoch reads: each `int(weight)` times, and a random sample for the fraction."""
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
        """Return the pool in batches of similar length and equal mixture, in random order, an incomplete one last."""
        copies: Counter[int] = Counter()
        groups: dict[tuple[Hashable, int], list[int]] = defaultdict(list)
        for index in sorted(pool, key=lambda index: self.lengths[index]):
            groups[self.kinds[index], copies[index]].append(index)
            copies[index] += 1
        # Sorting by the relative position in the group, from 0 to 1, makes all kinds go from short to long together.
        # Copies of an example are shifted, so that no batch has two of them.
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
    """An order that depends on the epoch."""

    def start_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iteration."""


class FollowEpochs(TrainerCallback):
    """Sets the epoch of an order, also in a resumed run.

    Args:
        order: The order of the trainer.
    """

    def __init__(self, order: EpochOrder) -> None:
        super().__init__()
        self._order = order

    def on_epoch_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Set the epoch of the trainer's state."""
        self._order.start_epoch(int(state.epoch or 0))


def training_order(
    data: TrainingData,
    batch: GlobalBatch,
    *,
    seed: int,
    tokens: Callable[[int], int] | None,
) -> TrainingOrder:
    """Return the order of training data. Every batch has the same mixture of data sets and kinds.

    Args:
        tokens: Estimates an example's tokens, to balance processes within a step; None to take turns.
    """
    data_sets = [number for number, (count, _) in enumerate(data.parts) for _ in range(count)]

    def share(step: list[int]) -> list[int]:
        assert tokens is not None
        counts = [tokens(index if index >= 0 else ~index) for index in step]
        return [step[i] for i in balance_by_tokens(counts, batch.processes)]

    return TrainingOrder(
        data.lengths,
        [*zip(data_sets, data.kinds, strict=True)],
        batch_size=batch.size,
        seed=seed,
        parts=data.parts,
        multiple_of=batch.at_a_time,
        share=share if tokens and batch.processes > 1 else None,
    )

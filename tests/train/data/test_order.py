from hypothesis import given
from hypothesis import strategies as st

from reflectune.train.data.order import TrainingOrder


def batches(order: TrainingOrder) -> list[list[int]]:
    indices = list(order)
    return [indices[i : i + order.batch_size] for i in range(0, len(indices), order.batch_size)]


@given(lengths=st.lists(st.integers(1, 500), max_size=300), batch_size=st.integers(1, 9), epoch=st.integers(0, 5))
def test_every_example_comes_once_an_epoch(lengths: list[int], batch_size: int, epoch: int) -> None:
    kinds = [length % 2 for length in lengths]
    order = TrainingOrder(lengths, kinds, batch_size=batch_size, seed=0)
    order.start_epoch(epoch)

    assert sorted(order) == list(range(len(lengths)))


def test_batches_hold_similar_lengths() -> None:
    lengths = [(i * 37) % 256 for i in range(256)]

    def padding(batches: list[list[int]]) -> int:
        return sum(8 * max(lengths[i] for i in batch) - sum(lengths[i] for i in batch) for batch in batches)

    ungrouped = [list(range(start, start + 8)) for start in range(0, 256, 8)]
    assert padding(batches(TrainingOrder(lengths, [0] * 256, batch_size=8, seed=0))) < padding(ungrouped) / 10


def test_every_batch_has_the_same_mixture_of_kinds() -> None:
    kinds = [i % 4 == 0 for i in range(256)]
    lengths = [20 if kind else 200 + i for i, kind in enumerate(kinds)]
    order = TrainingOrder(lengths, kinds, batch_size=8, seed=0)

    assert all(sum(kinds[i] for i in batch) == 2 for batch in batches(order))

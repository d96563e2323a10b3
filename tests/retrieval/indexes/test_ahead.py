import threading
from collections.abc import Iterator
from contextlib import closing

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reflectune.retrieval.indexes.images import ahead


@given(st.lists(st.lists(st.integers(), max_size=4), max_size=8), st.integers(0, 5))
@settings(deadline=None, max_examples=40)
def test_results_come_in_order_whatever_the_number_of_threads(batches: list[list[int]], workers: int) -> None:
    assert list(ahead(batches, lambda item: 2 * item, list, workers=workers)) == [
        [2 * item for item in batch] for batch in batches
    ]


def test_threads_work_while_the_results_are_used() -> None:
    begun = threading.Event()

    def make(item: int) -> int:
        if item == 1:
            begun.set()
        return item

    with closing(ahead([[0], [1]], make, sum, workers=1)) as results:
        assert next(results) == 0
        assert begun.wait(5), "the second batch was not begun before it was asked for"


def test_items_of_a_batch_are_made_at_a_time() -> None:
    meeting = threading.Barrier(3)
    assert list(ahead([range(3)], lambda _: meeting.wait(5) >= 0, all, workers=3)) == [True]


def test_no_more_than_a_few_batches_are_taken_before_they_are_needed() -> None:
    taken = []

    def batches() -> Iterator[list[int]]:
        for number in range(100):
            taken.append(number)
            yield [number]

    with closing(ahead(batches(), lambda item: item, sum, workers=2)) as results:
        next(results)
    assert len(taken) <= 4


@pytest.mark.parametrize("workers", [0, 2], ids=["none", "two"])
def test_an_error_comes_where_its_batch_would_come(workers: int) -> None:
    def make(item: int) -> int:
        if item == 2:
            raise ValueError("two")
        return item

    results = ahead([[0, 1], [2], [3]], make, sum, workers=workers)
    assert next(results) == 1
    with pytest.raises(ValueError, match="two"):
        next(results)


def test_closing_it_ends_its_threads() -> None:
    results = ahead([[number] for number in range(50)], lambda item: item, sum, workers=4)
    next(results)
    results.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("ahead")]

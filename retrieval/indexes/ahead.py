"""Threads that prepare the next batches, such as decoded pictures, while a model computes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

Item = TypeVar("Item")
Made = TypeVar("Made")
Joined = TypeVar("Joined")

_BATCHES = 3
"""Batches in work or ready, in addition to the one that was yielded last."""


def ahead(
    batches: Iterable[Sequence[Item]],
    make: Callable[[Item], Made],
    join: Callable[[Sequence[Made]], Joined],
    *,
    workers: int,
) -> Generator[Joined, None, None]:
    """Apply `make` to the items and `join` to the batches in threads, and yield the results in order.

    Pillow and numpy release Python's lock while they work on pixels, so that several pictures are decoded at a time.
    An error is raised in its batch's place. Closing the iterator drops batches that haven't begun.

    Args:
        batches: Batches of items.
        make: Function of an item.
        join: Function of a batch of `make`'s results.
        workers: Number of threads; 0: each batch is made when it is requested.
    """
    if not workers:
        for batch in batches:
            yield join([make(item) for item in batch])
        return
    left, running = iter(batches), deque[Future[Joined]]()
    pool = ThreadPoolExecutor(workers, thread_name_prefix="ahead")

    def begin(batch: Sequence[Item]) -> Future[Joined]:
        made = [pool.submit(make, item) for item in batch]
        # when a thread gets to this all of `made` have begun, so that it can't wait for a task that waits for a thread
        return pool.submit(lambda: join([future.result() for future in made]))

    try:
        running.extend(begin(batch) for batch in islice(left, _BATCHES))
        while running:
            joined = running.popleft().result()
            running.extend(begin(batch) for batch in islice(left, 1))
            yield joined
    finally:
        pool.shutdown(wait=True, cancel_futures=True)

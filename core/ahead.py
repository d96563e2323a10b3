"""Work that threads do ahead of whoever takes its results: reading and preparing pictures while a model computes."""

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
"""Batches in work or ready, beside the one that was taken last."""


def ahead(
    batches: Iterable[Sequence[Item]],
    make: Callable[[Item], Made],
    join: Callable[[Sequence[Made]], Joined],
    *,
    workers: int,
) -> Generator[Joined, None, None]:
    """Yield what is made of each batch of items, in the batches' order, with any number of threads.

    Pillow and numpy let other threads run while they work on pixels, so that several pictures are decoded at a time;
    an error is raised where its batch would come. When the iterator is closed, what hasn't begun is dropped.

    Args:
        batches: The items.
        make: What is made of an item, in a thread.
        join: What is made of a batch of those, in a thread too.
        workers: How many threads; 0: none, each batch is made when it is asked for.
    """
    if not workers:
        for batch in batches:
            yield join([make(item) for item in batch])
        return
    left, running = iter(batches), deque[Future[Joined]]()
    pool = ThreadPoolExecutor(workers, thread_name_prefix="ahead")

    def begin(batch: Sequence[Item]) -> Future[Joined]:
        made = [pool.submit(make, item) for item in batch]
        # all of `made` have begun when a thread gets to this, so that it never waits for what waits for a thread
        return pool.submit(lambda: join([one.result() for one in made]))

    try:
        running.extend(begin(batch) for batch in islice(left, _BATCHES))
        while running:
            joined = running.popleft().result()
            running.extend(begin(batch) for batch in islice(left, 1))
            yield joined
    finally:
        pool.shutdown(wait=True, cancel_futures=True)

"""Map tasks over processes, with results in the order of the tasks and few tasks in memory."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import TypeVar

from reflectune.core.errors import UserError

Task = TypeVar("Task")
Result = TypeVar("Result")


class Workers:
    """A pool of processes; a count of one works in this process.

    Args:
        count: Number of processes; 0 for the number of available cores.
    """

    def __init__(self, count: int = 0) -> None:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        self.count = count or cores
        self._pool: ProcessPoolExecutor | None = None

    def map(self, work: Callable[[Task], Result], tasks: Iterable[Task]) -> Iterator[tuple[Task, Result]]:
        """Yield each task with its result, in order. At most two tasks per process are pending.

        Raises:
            UserError: A process was killed, e.g. because memory ran out.
        """
        if self._pool is None:
            yield from ((task, work(task)) for task in tasks)
            return
        waiting: deque[tuple[Task, Future[Result]]] = deque()
        try:
            for task in tasks:
                waiting.append((task, self._pool.submit(work, task)))
                if len(waiting) > 2 * self.count:
                    yield _oldest(waiting)
            while waiting:
                yield _oldest(waiting)
        except BrokenProcessPool as error:
            raise UserError(
                "a worker process was killed, usually because memory ran out; "
                "run the same command again with fewer `workers`: finished work is kept"
            ) from error
        finally:
            for _, future in waiting:
                future.cancel()

    def __enter__(self) -> Workers:
        if self.count > 1:
            context = multiprocessing.get_context("spawn")
            self._pool = ProcessPoolExecutor(self.count, mp_context=context, initializer=_die_with_parent)
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)


def _oldest(waiting: deque[tuple[Task, Future[Result]]]) -> tuple[Task, Result]:
    task, future = waiting.popleft()
    return task, future.result()


def _die_with_parent() -> None:
    """Exit this process if the parent is killed, instead of waiting for tasks forever."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()

"""Requests under way to served models, on threads; their replies arrive in any order."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

from reflectune.core.durable import Closing
from reflectune.models.remote.client import AllRefused

Key = TypeVar("Key")


@dataclass(eq=False)
class _Group(Generic[Key]):
    key: Key
    replies: list[Any]
    missing: int
    seconds: float = 0.0


class RequestPool(Closing, Generic[Key]):
    """Execute requests on threads. `send` and `collect` must be called by one thread.

    Args:
        threads: Maximum concurrent requests; others wait for a thread.

    Attributes:
        load: Number of requests that have not been collected.
    """

    def __init__(self, threads: int) -> None:
        self._threads, self._executor, self.load = threads, ThreadPoolExecutor(threads), 0
        self._done: SimpleQueue[tuple[_Group[Key], int, Callable[[], Any], Future[tuple[Any, float]]]] = SimpleQueue()
        self._refused: list[tuple[_Group[Key], int, Callable[[], Any]]] = []

    def send(self, key: Key, requests: Sequence[Callable[[], Any]]) -> None:
        """Send requests whose replies are collected together."""
        group = _Group(key, [None] * len(requests), len(requests))
        self.load += len(requests)
        for position, request in enumerate(requests):
            self._submit(group, position, request)

    def _submit(self, group: _Group[Key], position: int, request: Callable[[], Any]) -> None:
        sent = self._executor.submit(_timed, request)
        sent.add_done_callback(lambda done: self._done.put((group, position, request, done)))

    def collect(self, *, wait: bool) -> list[tuple[Key, list[Any], float]]:
        """Return complete groups: their key, replies, and share of the time of all requests.

        A request that a server refuses before its first answer is sent again after that answer.

        Args:
            wait: True to wait until at least one group is complete.

        Raises:
            AllRefused: All requests were refused.
            Exception: A request failed.
        """
        complete: list[tuple[Key, list[Any], float]] = []
        while self.load and ((wait and not complete) or not self._done.empty()):
            group, position, request, done = self._done.get()
            try:
                group.replies[position], seconds = done.result()
            except AllRefused:
                self._refused.append((group, position, request))
                if len(self._refused) == self.load:
                    raise
                continue
            while self._refused:
                self._submit(*self._refused.pop())
            group.seconds += seconds / min(self.load, self._threads)
            self.load -= 1
            group.missing -= 1
            if not group.missing:
                complete.append((group.key, group.replies, group.seconds))
        return complete

    def close(self) -> None:
        """Wait for the running requests, so that their replies are stored, and cancel the queued ones."""
        self._executor.shutdown(wait=True, cancel_futures=True)


def _timed(request: Callable[[], Any]) -> tuple[Any, float]:
    start = time.perf_counter()
    return request(), time.perf_counter() - start

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
class Arrived(Generic[Key]):
    """Replies that belong together.

    Attributes:
        key: Their key.
        replies: In the order of the requests.
        seconds: Their share of the time: seconds under way, divided among all requests that were.
    """

    key: Key
    replies: list[Any]
    seconds: float = 0.0


_Request = tuple[Arrived[Key], int, Callable[[], Any]]


class RequestPool(Closing, Generic[Key]):
    """Send requests on threads. One thread, the owner, sends and collects.

    Args:
        threads: Most requests under way at a time; others wait for a thread.

    Attributes:
        load: Requests that have not been collected.
    """

    def __init__(self, threads: int) -> None:
        self._threads, self._executor = threads, ThreadPoolExecutor(threads)
        self._done: SimpleQueue[tuple[_Request[Key], Future[tuple[Any, float]]]] = SimpleQueue()
        self._missing: dict[Arrived[Key], int] = {}
        self._refused: list[_Request[Key]] = []
        self.load = 0

    def send(self, key: Key, requests: Sequence[Callable[[], Any]]) -> None:
        """Send requests whose replies are collected together."""
        group = Arrived(key, [None] * len(requests))
        self._missing[group] = len(requests)
        self.load += len(requests)
        for place, request in enumerate(requests):
            self._submit((group, place, request))

    def collect(self, *, wait: bool) -> list[Arrived[Key]]:
        """Return the groups of replies that are complete; wait for one if `wait`.

        A request that a server refuses before it has answered any is sent again once it has.

        Raises:
            AllRefused: All requests were refused.
            Exception: A request failed.
        """
        complete: list[Arrived[Key]] = []
        while self.load and ((wait and not complete) or not self._done.empty()):
            request, done = self._done.get()
            try:
                reply, seconds = done.result()
            except AllRefused:
                self._refused.append(request)
                if len(self._refused) == self.load:
                    raise
                continue
            while self._refused:
                self._submit(self._refused.pop())
            group, place, _ = request
            group.replies[place] = reply
            group.seconds += seconds / min(self.load, self._threads)
            self.load -= 1
            self._missing[group] -= 1
            if not self._missing[group]:
                del self._missing[group]
                complete.append(group)
        return complete

    def _submit(self, request: _Request[Key]) -> None:
        sent = self._executor.submit(_timed, request[2])
        sent.add_done_callback(lambda done: self._done.put((request, done)))

    def close(self) -> None:
        """Wait for the requests under way, so that their replies are stored; send no others."""
        self._executor.shutdown(wait=True, cancel_futures=True)


def _timed(request: Callable[[], Any]) -> tuple[Any, float]:
    start = time.perf_counter()
    return request(), time.perf_counter() - start

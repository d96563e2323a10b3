"""Trying again what may pass: backoff, and waiting as long as a server asks, which holds all threads back."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar, cast

import tenacity

Result = TypeVar("Result")

LONGEST_WAIT = 300.0
"""Seconds. A server that asks for more is asked again after this long."""


class Passing(Exception):
    """A failure that may pass. `wait`: how many seconds the server asked to wait, if it did."""

    def __init__(self, problem: str, wait: float | None = None) -> None:
        super().__init__(problem)
        self.wait = wait


class Patience:
    """Tries again whatever raises `Passing`; several threads may share one.

    A `Retry-After` holds all threads back, since the limit that it speaks of is theirs together: tenacity knows the
    waits of its own call only.

    Args:
        retries: How often a failed attempt is repeated.
        backoff: Seconds before the first retry, doubled for each further one, with chance in it.

    Attributes:
        retried: How often something was tried again.
    """

    def __init__(self, retries: int, backoff: float) -> None:
        self.retried = 0
        self._lock = threading.Lock()
        self._not_before = 0.0
        self._stopped = threading.Event()
        half = {"multiplier": backoff / 2, "max": LONGEST_WAIT / 2}
        self._backoff = tenacity.wait_exponential(**half) + tenacity.wait_random_exponential(**half)
        self._retrying = tenacity.Retrying(
            sleep=tenacity.sleep_using_event(self._stopped),
            stop=tenacity.stop_after_attempt(retries + 1),
            wait=lambda state: self._backoff(state) if _failure(state).wait is None else 0.0,
            retry=tenacity.retry_if_exception_type(Passing),
            before_sleep=self._note_retry,
            reraise=True,
        )

    def insist(self, attempt: Callable[..., Result], *arguments: Any) -> Result:
        """What an attempt returns that ends well.

        Raises:
            Passing: The last attempt failed too.
        """
        return self._retrying(attempt, *arguments)

    def stop(self) -> None:
        """Let no thread wait any longer."""
        self._stopped.set()

    @property
    def is_stopped(self) -> bool:
        """Whether `stop` was called."""
        return self._stopped.is_set()

    def wait(self) -> None:
        """Wait as long as a server asked any thread to, or until `stop`."""
        while (seconds := self._not_before - time.monotonic()) > 0 and not self.is_stopped:
            self._stopped.wait(seconds)

    def wait_turn(self, pace: float) -> None:
        """As `wait`, and until `pace` seconds after the turn before."""
        with self._lock:
            begin = max(self._not_before, time.monotonic())
            self._not_before = begin + pace
        if (seconds := begin - time.monotonic()) > 0:
            self._stopped.wait(seconds)

    def _note_retry(self, state: tenacity.RetryCallState) -> None:
        until = time.monotonic() + min(_failure(state).wait or 0.0, LONGEST_WAIT)
        with self._lock:
            self.retried += 1
            self._not_before = max(self._not_before, until)


def _failure(state: tenacity.RetryCallState) -> Passing:
    return cast(Passing, cast(tenacity.Future, state.outcome).exception())

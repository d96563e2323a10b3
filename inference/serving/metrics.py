"""Metrics of the server for Prometheus."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_BATCHES: Final = (1, 2, 4, 8, 16, 32, 64)
_SECONDS: Final = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)


class ServerMetrics:
    """Counts of requests by route and status, their seconds, questions, batches and the queue.

    Args:
        waiting: Returns the number of questions that wait for the worker.
    """

    def __init__(self, waiting: Callable[[], int]) -> None:
        self._registry = CollectorRegistry()
        own: dict[str, Any] = {"registry": self._registry}
        self._requests = Counter("reflectune_requests", "Requests", ["route", "status"], **own)
        self._seconds = Histogram(
            "reflectune_request_seconds", "Seconds of a request", ["route"], buckets=_SECONDS, **own
        )
        self._questions = Counter("reflectune_questions", "Questions passed to a pipeline", ["pipeline"], **own)
        self._batches = Histogram("reflectune_batch_size", "Questions answered together", buckets=_BATCHES, **own)
        Gauge("reflectune_waiting", "Questions and searches that wait", **own).set_function(waiting)

    def count(self, route: str, status: int, seconds: float) -> None:
        """Count a request."""
        self._requests.labels(route, str(status)).inc()
        self._seconds.labels(route).observe(seconds)

    def count_batch(self, pipeline: str, questions: int) -> None:
        """Count a batch."""
        self._questions.labels(pipeline).inc(questions)
        self._batches.observe(questions)

    def text(self) -> bytes:
        """Return the metrics in Prometheus's text format."""
        return generate_latest(self._registry)

"""Protocol of pipelines, and their clock."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Protocol

from PIL import Image

from reflectune.core.types import Question
from reflectune.inference.trace import Trace


class Pipeline(Protocol):
    """Answers batches of questions. `name` is the name of its traces."""

    name: str

    def run(self, questions: Sequence[Question], images: Sequence[Image.Image]) -> list[Trace]:
        """Return one trace per question, in order."""
        ...


def answer(pipeline: Pipeline, question: str, image: Image.Image) -> Trace:
    """Answer a single question."""
    return pipeline.run([Question(id="question", image="", text=question)], [image])[0]


class Clock:
    """Seconds per step of a batch.

    Example:
        >>> clock = Clock()
        >>> with clock.step("retrieve"):
        ...     hits = retriever.search(images, top_n=5)
        >>> clock.share(len(images))
        {'retrieve': 0.0125}
    """

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Time a block; blocks of one name add up."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self._seconds[name] = self._seconds.get(name, 0.0) + time.perf_counter() - start

    def share(self, questions: int) -> Mapping[str, float]:
        """Return each question's share of the batch's seconds, to the microsecond."""
        return {name: round(seconds / questions, 6) for name, seconds in self._seconds.items()}

"""Protocol of pipelines, their clock, and answers from given passages."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from PIL import Image

from reflectune.core.images import Images
from reflectune.core.types import AnswerType, Passage, Question
from reflectune.formats.hits import Hit
from reflectune.inference.reading.reader import ReaderAnswer
from reflectune.inference.trace import PassageTrace, Trace, publish


class Pipeline(Protocol):
    """Answers batches of questions. `name` is the name of its traces."""

    name: str

    def run(self, questions: Sequence[Question], images: Sequence[Any]) -> list[Trace]:
        """Return one trace per question, in order.

        Args:
            questions: The questions.
            images: An image of each, or `Images` if its recipe `takes_images`.
        """
        ...


def answer(pipeline: Pipeline, question: str, image: Image.Image, answer_type: AnswerType = "string") -> Trace:
    """Answer a single question."""
    return pipeline.run([Question(id="question", image="", text=question, answer_type=answer_type)], [image])[0]


class Clock:
    """Seconds per step of a batch.

    Example:
        >>> clock = Clock()
        >>> with clock.step("retrieve"):
        ...     hits = retriever.search(queries, top_n=5)
        >>> clock.share(len(queries))
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


Context = tuple[Sequence[Sequence[Hit]], Sequence[Sequence[Passage]]]
"""The entries retrieved for each question, none for an oracle, and the passages to read, best first."""
Find = Callable[[Sequence[Question], Sequence[Images], Clock], Context]
"""Finds the context of each question."""


class PlainReader(Protocol):
    """Answers in one turn."""

    def answer_plainly(
        self, questions: Sequence[Question], images: Sequence[Images], contexts: Sequence[Sequence[Passage]]
    ) -> list[ReaderAnswer]:
        """Answer from the images, the question and the leading passages that fit the context whole."""
        ...


class ContextPipeline:
    """Answers each question in one turn from the leading passages that fit the context whole; the others are counted.

    Args:
        name: Name of its traces.
        reader: The model: the base, or one that was fine-tuned on such contexts (scheme `plain`).
        find: Finds the entries and the passages.
    """

    def __init__(self, name: str, reader: PlainReader, find: Find) -> None:
        self.name, self._reader, self._find = name, reader, find

    def run(self, questions: Sequence[Question], images: Sequence[Images]) -> list[Trace]:
        """Return one trace per question, in order."""
        clock = Clock()
        hits, passages = self._find(questions, images, clock)
        scores = [{hit.entry_id: hit.score for hit in question_hits} for question_hits in hits]
        traces = [
            Trace(
                question_id=question.id,
                pipeline=self.name,
                retrieved=bool(hits[i]),
                hits=tuple(hits[i]),
                passages=tuple(PassageTrace(passage, s_ret=scores[i].get(passage.entry_id)) for passage in passages[i]),
            )
            for i, question in enumerate(questions)
        ]
        publish(dataclasses.replace(trace, passages=()) for trace in traces)  # some may not fit the context
        with clock.step("answer"):
            answers = self._reader.answer_plainly(questions, images, passages)
        return [
            dataclasses.replace(
                trace,
                answer=answer.text,
                confidence=answer.score,
                cut=answer.cut,
                error=answer.error,
                passages=trace.passages[: answer.passages_read],
                seconds=clock.share(len(questions)),
                tokens={
                    **answer.usage,
                    "passages_read": answer.passages_read,
                    "passages_left_out": len(trace.passages) - answer.passages_read,
                },
            )
            for trace, answer in zip(traces, answers, strict=True)
        ]

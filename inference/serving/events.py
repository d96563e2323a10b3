"""Events of a question that is being answered, made from its partial traces."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from reflectune.core import rows
from reflectune.inference.trace import Trace, to_row

EventName = Literal["gate", "hits", "passage", "step", "answer", "done", "error"]


@dataclass(frozen=True)
class Event:
    """An event of a question.

    Attributes:
        name: `gate`; `hits`, the retrieved entries; `passage`, one event for each passage read; `step` of an iterative
            pipeline; `answer`; `done`, with the whole trace; `error`, in place of the remaining events.
        data: Content, as JSON.
    """

    name: EventName
    data: dict[str, Any]

    @classmethod
    def done(cls, trace: Trace) -> Event:
        """Return the last event of a question."""
        return cls("done", {"trace": to_row(trace)})


def events_between(before: Trace | None, after: Trace) -> Iterator[Event]:
    """Yield the events between two partial traces of a question; `before` is None at the first one."""
    before = before or Trace(after.question_id, after.pipeline)
    if before.gate is None and after.gate is not None:
        yield Event("gate", {"gate": after.gate, "retrieved": after.retrieved})
    for step in after.steps[len(before.steps) :]:
        yield Event("step", rows.to_row(step))
    if not before.hits and after.hits:
        yield Event("hits", {"hits": [rows.to_row(hit) for hit in after.hits]})
    if not before.passages:
        row = to_row(after)["passages"] if after.passages else []
        for position, passage in enumerate(row):
            yield Event("passage", {"position": position, **passage})
    if not before.answer and after.answer:
        yield Event("answer", {"answer": after.answer, "confidence": after.confidence, "chosen": after.chosen})

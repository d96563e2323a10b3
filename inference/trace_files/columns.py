"""A pipeline's traces for scoring, in Arrow columns without the passages' texts."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np
import pyarrow as pa

from reflectune.core.rows import from_row
from reflectune.formats.hits import Hit
from reflectune.inference.trace import Step, TextlessPassage, TextlessTrace, Trace, by_question
from reflectune.inference.trace_files.layout import QUESTIONS_AT_ONCE
from reflectune.inference.trace_files.reading import TraceFile, read_traces, without_none

Item = TypeVar("Item")

_LISTS: Final = ["hits", "passages", "steps"]
"""Fields that are converted from columns at each access."""


class TraceColumns(Mapping[str, TextlessTrace]):
    """Traces by question id, without the passages' texts. `read` returns whole traces.

    The columns are read on first access, and stay in memory: 14 KB for a trace with 150 passages.

    Args:
        file: The traces.
        question_ids: The questions, in the order of iteration; each must have a trace.
    """

    def __init__(self, file: TraceFile, question_ids: Sequence[str]) -> None:
        self._file = file
        self._selected = dict.fromkeys(question_ids)

    def __getitem__(self, question_id: str) -> TextlessTrace:
        if question_id not in self._selected:
            raise KeyError(question_id)
        group, row = self._file.place(question_id)
        return self._groups[group][row]

    def __iter__(self) -> Iterator[str]:
        return iter(self._selected)

    def __len__(self) -> int:
        return len(self._selected)

    def __contains__(self, question_id: object) -> bool:
        return question_id in self._selected

    def read(self, question_ids: Sequence[str]) -> dict[str, Trace]:
        """Return the whole traces of these questions, as far as they were selected."""
        return self._file.read([question_id for question_id in question_ids if question_id in self._selected])

    @functools.cached_property
    def _groups(self) -> list[list[TextlessTrace]]:
        return [_traces(batch) for batch in self._file.groups()]


StoredTraces = Mapping[str, Trace] | TraceColumns
"""A pipeline's traces by question id. Those of a large run are on disk."""


def with_texts(traces: StoredTraces, question_ids: Sequence[str]) -> Mapping[str, Trace]:
    """Return the whole traces of these questions, by id; all traces if they are in memory anyway."""
    return traces.read(question_ids) if isinstance(traces, TraceColumns) else traces


def whole_traces(traces: StoredTraces, question_ids: Sequence[str]) -> Iterator[Trace]:
    """Yield the whole traces of questions, in order, with a few hundred in memory. Each question must have one."""
    for start in range(0, len(question_ids), QUESTIONS_AT_ONCE):
        chunk = question_ids[start : start + QUESTIONS_AT_ONCE]
        yield from map(with_texts(traces, chunk).__getitem__, chunk)


def open_traces(path: Path) -> StoredTraces:
    """Open the traces of a file.

    Raises:
        UserError: It is damaged.
    """
    if path.suffix != ".parquet":
        return by_question(read_traces(path))
    file = TraceFile(path)
    return TraceColumns(file, file.question_ids)


def _traces(batch: pa.RecordBatch) -> list[TextlessTrace]:
    """Return the traces of a row group."""
    hits, passages, steps = (batch.column(name) for name in _LISTS)
    numbers = [column.to_pandas().to_numpy() for column in passages.values.flatten()]
    lists = zip(
        _slices(hits, functools.partial(_items, Hit, hits.values)),
        _slices(passages, functools.partial(_passages, numbers)),
        _slices(steps, functools.partial(_items, Step, steps.values)),
        strict=True,
    )
    rows = batch.drop_columns(_LISTS).to_pylist(maps_as_pydicts="strict")
    return [
        dataclasses.replace(from_row(TextlessTrace, without_none(row)), hits=found, passages=read, steps=made)
        for row, (found, read, made) in zip(rows, lists, strict=True)
    ]


def _slices(column: pa.ListArray, read: Callable[[int, int], Sequence[Item]]) -> Iterator[_Slice[Item]]:
    return (_Slice(read, start, end) for start, end in itertools.pairwise(column.offsets.to_pylist()))


def _items(kind: type[Item], column: pa.StructArray, start: int, end: int) -> list[Item]:
    rows = column.slice(start, end - start).to_pylist(maps_as_pydicts="strict")
    return [from_row(kind, without_none(row)) for row in rows]


def _passages(columns: Sequence[np.ndarray], start: int, end: int) -> list[TextlessPassage]:
    """Convert numpy columns, in which NaN means missing, to passages."""
    values = ([None if value != value else value for value in column[start:end].tolist()] for column in columns)
    return [TextlessPassage(*fields) for fields in zip(*values, strict=True)]


class _Slice(Sequence[Item]):
    """A part of a column whose items are created at each access."""

    def __init__(self, read: Callable[[int, int], Sequence[Item]], start: int, end: int) -> None:
        self._read, self._start, self._end = read, start, end

    def __len__(self) -> int:
        return self._end - self._start

    def __iter__(self) -> Iterator[Item]:
        return iter(self._read(self._start, self._end))

    def __getitem__(self, index: Any) -> Any:
        return tuple(self)[index]

"""A pipeline's traces for scoring: all but passages' text, in Arrow's columns."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

from reflectune.core.rows import from_row
from reflectune.core.types import Passage
from reflectune.inference.trace import PassageTrace, Trace
from reflectune.inference.trace_files.reading import TraceFile, without_none

NO_TEXT: Final = Passage("", -1, -1, "", "", "", "")
"""Placeholder of each passage."""


class TraceColumns(Mapping[str, Trace]):
    """Traces by question id, each built from columns on access, with `NO_TEXT` for passages.

    `read` returns whole traces. The columns are read on the first access, and stay in memory.

    Args:
        file: The traces.
        question_ids: The questions, in the order of iteration; each must have a trace.
    """

    def __init__(self, file: TraceFile, question_ids: Sequence[str]) -> None:
        self._file = file
        self._selected = dict.fromkeys(question_ids)

    def __getitem__(self, question_id: str) -> Trace:
        if question_id not in self._selected:
            raise KeyError(question_id)
        group, row = self._file.place(question_id)
        return _TraceRow(self._groups[group], row)

    def __iter__(self) -> Iterator[str]:
        return iter(self._selected)

    def __len__(self) -> int:
        return len(self._selected)

    def __contains__(self, question_id: object) -> bool:
        return question_id in self._selected

    def read(self, question_ids: Sequence[str]) -> dict[str, Trace]:
        """Return the traces of those of these questions that were selected, with their passages' text."""
        return self._file.read([question_id for question_id in question_ids if question_id in self._selected])

    @functools.cached_property
    def _groups(self) -> list[_RowGroup]:
        return [_RowGroup(batch) for batch in self._file.groups()]


def with_texts(traces: Mapping[str, Trace], question_ids: Sequence[str]) -> Mapping[str, Trace]:
    """Return the whole traces of these questions, by id; all traces, if they are in memory anyway."""
    return traces.read(question_ids) if isinstance(traces, TraceColumns) else traces


class _RowGroup:
    """Columns of a row group; those of its passages are concatenated, with NaN for missing numbers."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        passages = batch.column("passages")
        self._columns = {name: batch.column(name) for name in batch.schema.names if name != "passages"}
        self._ends = passages.offsets.to_numpy()
        self._passages = [column.to_pandas().to_numpy() for column in passages.values.flatten()]

    def value(self, name: str, row: int) -> Any:
        """Return a field of a trace."""
        if name == "passages":
            of_row = slice(self._ends[row], self._ends[row + 1])
            columns = (
                [None if each != each else each for each in column[of_row].tolist()] for column in self._passages
            )
            return tuple(PassageTrace(NO_TEXT, *values) for values in zip(*columns, strict=True))

        value = self._columns[name][row].as_py(maps_as_pydicts="strict")
        if isinstance(value, (list, dict)):
            fields = {"question_id": "", "pipeline": "", name: without_none(value)}
            return getattr(from_row(Trace, fields), name)
        return value


class _TraceRow(Trace):
    """A trace that is a row of columns: each of its fields is read on access."""

    columns: _RowGroup
    row: int

    def __init__(self, columns: _RowGroup, row: int) -> None:
        object.__setattr__(self, "columns", columns)
        object.__setattr__(self, "row", row)


def _read(name: str, trace: _TraceRow) -> Any:
    return trace.columns.value(name, trace.row)


for _field in dataclasses.fields(Trace):
    setattr(_TraceRow, _field.name, property(functools.partial(_read, _field.name)))

"""A pipeline's traces for scoring: all but passages' text, in columns, a few bytes for each passage."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from reflectune.core.rows import from_row
from reflectune.core.types import Passage
from reflectune.formats.hits import Hit
from reflectune.inference.reading.document_choice import MctTrace
from reflectune.inference.trace import PassageTrace, Step, Trace
from reflectune.inference.trace_files.layout import frugal
from reflectune.inference.trace_files.reading import TraceFile, without_none

NO_TEXT: Final = Passage("", -1, -1, "", "", "", "")
"""Placeholder of each passage."""

_FEW: Final = 4
"""A column whose values repeat this often, on average, is stored as indices into a list of values."""


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
        with frugal():
            return [_RowGroup(batch) for batch in self._file.groups()]


def with_texts(traces: Mapping[str, Trace], question_ids: Sequence[str]) -> Mapping[str, Trace]:
    """Return the whole traces of these questions, by id; all traces, if they are in memory anyway."""
    return traces.read(question_ids) if isinstance(traces, TraceColumns) else traces


class _RowGroup:
    """Columns of a row group; those of its passages are concatenated."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        passages = batch.column("passages")
        self._columns = {name: batch.column(name) for name in batch.schema.names if name != "passages"}
        self._ends = passages.offsets.to_numpy()
        fields = zip(passages.type.value_type, passages.values.flatten(), strict=True)
        self._passages = [_PassageColumn(column, getattr(_PASSAGE, field.name)) for field, column in fields]

    def value(self, name: str, row: int) -> Any:
        """Return a field of a trace; its default if missing."""
        if name == "passages":
            start, end = self._ends[row], self._ends[row + 1]
            columns = [column.values(start, end) for column in self._passages]
            return tuple(PassageTrace(NO_TEXT, *values) for values in zip(*columns, strict=True))

        value = self._columns[name][row].as_py(maps_as_pydicts="strict")
        if isinstance(value, (list, dict)):
            fields = {"question_id": "", "pipeline": "", name: without_none(value)}
            return getattr(from_row(Trace, fields), name)
        return getattr(_TRACE, name) if value is None else value


class _PassageColumn:
    """A field of many passages: numbers, in single precision if that is lossless, or indices into a list of values.

    Args:
        column: The field.
        default: Default of missing values.
    """

    def __init__(self, column: pa.Array, default: Any) -> None:
        self._values: list[Any] | None = None
        self._missing: np.ndarray | None = None
        encoded = column.dictionary_encode(null_encoding="encode")
        if not pa.types.is_floating(column.type) or len(encoded.dictionary) * _FEW <= len(column):
            self._values = [default if value is None else value for value in encoded.dictionary.to_pylist()]
            indices = encoded.indices.to_numpy() if len(self._values) > 1 else np.empty(0)
            self._numbers = indices.astype(np.min_scalar_type(len(self._values)))
            return
        numbers = column.to_numpy(zero_copy_only=False)
        single = numbers.astype(np.float32)
        self._numbers = single if np.array_equal(single, numbers, equal_nan=True) else numbers.copy()
        if column.null_count:
            self._missing = column.is_null().to_numpy(zero_copy_only=False)

    def values(self, start: int, end: int) -> list[Any]:
        """Return the values of a range."""
        if self._values is not None and len(self._values) == 1:
            return self._values * (end - start)
        numbers = self._numbers[start:end].tolist()
        if self._values is not None:
            return [self._values[index] for index in numbers]
        if self._missing is not None:
            missing = self._missing[start:end].tolist()
            return [None if is_missing else number for number, is_missing in zip(numbers, missing, strict=True)]
        return numbers


def _field(name: str) -> Any:
    """Return a property that reads a field of a trace from its columns."""
    return property(lambda trace: trace.columns.value(name, trace.row))


class _TraceRow(Trace):
    """A trace that is a row of columns."""

    columns: _RowGroup
    row: int

    def __init__(self, columns: _RowGroup, row: int) -> None:
        object.__setattr__(self, "columns", columns)
        object.__setattr__(self, "row", row)

    question_id: str = _field("question_id")
    pipeline: str = _field("pipeline")
    answer: str = _field("answer")
    confidence: float | None = _field("confidence")
    gate: float | None = _field("gate")
    retrieved: bool = _field("retrieved")
    hits: tuple[Hit, ...] = _field("hits")
    passages: tuple[PassageTrace, ...] = _field("passages")
    chosen: int | None = _field("chosen")
    kept: tuple[int, ...] = _field("kept")
    used: tuple[int, ...] = _field("used")
    mct: MctTrace | None = _field("mct")
    fallback: str = _field("fallback")
    steps: tuple[Step, ...] = _field("steps")
    ended: str = _field("ended")
    limit: Mapping[str, float] = _field("limit")
    seconds: Mapping[str, float] = _field("seconds")
    tokens: Mapping[str, int] = _field("tokens")
    error: str = _field("error")


_TRACE: Final = Trace("", "")
_PASSAGE: Final = PassageTrace(NO_TEXT)
"""Sources of the defaults of missing fields."""

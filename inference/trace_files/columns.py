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
"""What stands for each passage."""

_FEW: Final = 4
"""A column whose values occur so often, on average, is kept as places in a list of them."""


class TraceColumns(Mapping[str, Trace]):
    """Traces by question id, each put together from columns whenever it is asked for, with `NO_TEXT` for passages.

    `read` gives whole traces. The columns are read when the first trace is asked for, and stay.

    Args:
        file: The traces.
        question_ids: The questions, in the order of iteration; each must have a trace.
    """

    def __init__(self, file: TraceFile, question_ids: Sequence[str]) -> None:
        self._file = file
        self._asked = dict.fromkeys(question_ids)

    def __getitem__(self, question_id: str) -> Trace:
        if question_id not in self._asked:
            raise KeyError(question_id)
        group, row = self._file.place(question_id)
        return _TraceRow(self._groups[group], row)

    def __iter__(self) -> Iterator[str]:
        return iter(self._asked)

    def __len__(self) -> int:
        return len(self._asked)

    def __contains__(self, question_id: object) -> bool:
        return question_id in self._asked

    def read(self, question_ids: Sequence[str]) -> dict[str, Trace]:
        """The traces of those of these questions that were asked for, with their passages' text."""
        return self._file.read([question_id for question_id in question_ids if question_id in self._asked])

    @functools.cached_property
    def _groups(self) -> list[_RowGroup]:
        with frugal():
            return [_RowGroup(batch) for batch in self._file.groups()]


def with_texts(traces: Mapping[str, Trace], question_ids: Sequence[str]) -> Mapping[str, Trace]:
    """The whole traces of these questions, by id; all, if all are in memory anyway."""
    return traces.read(question_ids) if isinstance(traces, TraceColumns) else traces


class _RowGroup:
    """The columns of a row group; those of its passages lie end to end."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        passages = batch.column("passages")
        self._columns = {name: batch.column(name) for name in batch.schema.names if name != "passages"}
        self._ends = passages.offsets.to_numpy()
        fields = zip(passages.type.value_type, passages.values.flatten(), strict=True)
        self._passages = [_PassageColumn(column, getattr(_PASSAGE, field.name)) for field, column in fields]

    def value(self, name: str, row: int) -> Any:
        """A field of a trace; its default if it is missing."""
        if name == "passages":
            start, end = self._ends[row], self._ends[row + 1]
            columns = [column.values(start, end) for column in self._passages]
            return tuple(PassageTrace(NO_TEXT, *values) for values in zip(*columns, strict=True))
        if name not in self._columns:  # a version before this one wrote it
            return getattr(_TRACE, name)
        value = self._columns[name][row].as_py(maps_as_pydicts="strict")
        if isinstance(value, (list, dict)):
            fields = {"question_id": "", "pipeline": "", name: without_none(value)}
            return getattr(from_row(Trace, fields), name)
        return getattr(_TRACE, name) if value is None else value


class _PassageColumn:
    """One field of many passages: numbers, in single precision if nothing is lost by it, or places in a list of values.

    Args:
        column: The field.
        default: What stands for missing values.
    """

    def __init__(self, column: pa.Array, default: Any) -> None:
        self._values: list[Any] | None = None
        self._missing: np.ndarray | None = None
        encoded = column.dictionary_encode(null_encoding="encode")
        if not pa.types.is_floating(column.type) or len(encoded.dictionary) * _FEW <= len(column):
            self._values = [default if value is None else value for value in encoded.dictionary.to_pylist()]
            places = encoded.indices.to_numpy() if len(self._values) > 1 else np.empty(0)
            self._numbers = places.astype(np.min_scalar_type(len(self._values)))
            return
        numbers = column.to_numpy(zero_copy_only=False)
        single = numbers.astype(np.float32)
        self._numbers = single if np.array_equal(single, numbers, equal_nan=True) else numbers.copy()
        if column.null_count:
            self._missing = column.is_null().to_numpy(zero_copy_only=False)

    def values(self, start: int, end: int) -> list[Any]:
        """The values from one place up to another."""
        if self._values is not None and len(self._values) == 1:
            return self._values * (end - start)
        numbers = self._numbers[start:end].tolist()
        if self._values is not None:
            return [self._values[place] for place in numbers]
        if self._missing is not None:
            missing = self._missing[start:end].tolist()
            return [None if none else number for number, none in zip(numbers, missing, strict=True)]
        return numbers


def _field(name: str) -> Any:
    """A field of a trace, taken from its columns whenever it is asked for."""
    return property(lambda trace: trace.columns.value(name, trace.place))


class _TraceRow(Trace):
    """A trace that is a row of columns."""

    columns: _RowGroup
    place: int

    def __init__(self, columns: _RowGroup, place: int) -> None:
        object.__setattr__(self, "columns", columns)
        object.__setattr__(self, "place", place)

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
"""Their fields stand for missing ones."""

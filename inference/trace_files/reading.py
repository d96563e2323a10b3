"""Read traces of finished pipelines, in either format."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from reflectune.core import rows
from reflectune.core.durable import read_rows
from reflectune.core.errors import UserError
from reflectune.core.types import Passage
from reflectune.inference.trace import Trace, from_row
from reflectune.inference.trace_files.layout import (
    KEY,
    is_questions,
    open_table,
    passages_path,
    reading,
)


class TraceFile:
    """The traces of a pipeline in Parquet. Only question ids are in memory; traces are read on request.

    Args:
        path: The questions' file, whose passages are in a second file.
        fingerprint: Hash of everything that determines a trace; not compared if None.

    Raises:
        UserError: A file is damaged, or of other settings.
    """

    def __init__(self, path: Path, fingerprint: str | None = None) -> None:
        self.path, self._texts = path, passages_path(path)
        self._file = open_table(path, fingerprint)
        self._places: dict[str, tuple[int, int]] = {}
        for number in self._numbers:
            ids = self.group(number, ["question_id"]).column(0).to_pylist()
            self._places.update((question_id, (number, row)) for row, question_id in enumerate(ids))

    def endings(self) -> Iterator[dict[str, Any]]:
        """Yield the fields of each trace that decide whether it is computed again."""
        columns = ["question_id", "limit", "error", "question_hash"]
        for number in self._numbers:
            yield from self.group(number, columns).to_pylist(maps_as_pydicts="strict")

    @property
    def question_ids(self) -> list[str]:
        """The questions, in the order of the file."""
        return [*self._places]

    def place(self, question_id: str) -> tuple[int, int]:
        """Return the row group and row of a question's trace."""
        return self._places[question_id]

    def __iter__(self) -> Iterator[Trace]:
        """Yield all traces, with one row group in memory."""
        for number in self._numbers:
            yield from self._whole([self.group(number)])

    def read(self, question_ids: Iterable[str]) -> dict[str, Trace]:
        """Return the stored traces of these questions, by id. Each row group is read once."""
        rows_of: dict[int, list[int]] = {}
        stored = [question_id for question_id in question_ids if question_id in self._places]
        for number, row in map(self._places.__getitem__, stored):
            rows_of.setdefault(number, []).append(row)
        tables = [self.group(number).take(places) for number, places in rows_of.items()]
        by_id = {trace.question_id: trace for trace in self._whole(tables)}
        return {question_id: by_id[question_id] for question_id in stored}

    def group(self, number: int, columns: Sequence[str] | None = None) -> pa.Table:
        """Read all columns of a row group, or those with these paths."""
        with reading(self.path):
            return self._file.read_row_group(number, columns)

    def groups(self) -> Iterator[pa.RecordBatch]:
        """Yield the row groups, without passages' keys."""
        schema = self._file.schema
        paths = (schema.column(place).path for place in range(len(schema)))
        columns = [path for path in paths if path != f"passages.list.element.{KEY}"]
        for number in self._numbers:
            (batch,) = self.group(number, columns).combine_chunks().to_batches()
            yield batch

    @property
    def _numbers(self) -> range:
        return range(self._file.num_row_groups)

    def _whole(self, tables: Sequence[pa.Table]) -> Iterator[Trace]:
        """Yield the traces of these rows. Their passages' texts are read once for all of them."""
        keys = {key for table in tables for key in _keys_of(table)}
        passages = self._passages(keys)
        for row in itertools.chain.from_iterable(table.to_pylist(maps_as_pydicts="strict") for table in tables):
            for passage in row["passages"]:
                passage["passage"] = passages[passage[KEY]]
            try:
                trace = rows.from_row(Trace, without_none(row))
            except ValueError as error:
                raise UserError(f"{self.path} is damaged: question {row.get('question_id')}: {error}") from error
            yield trace

    def _passages(self, keys: set[int]) -> dict[int, Passage]:
        """Read passages by key, from the row groups that have one; UserError if a passage is missing."""
        positions = np.flatnonzero(np.isin(self._keys, np.fromiter(keys, np.int64, len(keys))))
        passages: dict[int, Passage] = {}
        with open_table(self._texts) as file, reading(self._texts):
            start = 0
            for group in range(file.num_row_groups):
                size = file.metadata.row_group(group).num_rows
                rows = positions[(positions >= start) & (positions < start + size)] - start
                if len(rows):
                    for row in file.read_row_group(group).take(rows).to_pylist():
                        key = row.pop(KEY)
                        passages[key] = Passage(**row)
                start += size
        if len(passages) < len(keys):
            raise UserError(
                f"{self.path}: {len(keys) - len(passages)} passages are not in {self._texts}; restore that file as it "
                "was written with this one"
            )
        return passages

    @functools.cached_property
    def _keys(self) -> np.ndarray:
        with open_table(self._texts) as file, reading(self._texts):
            return file.read([KEY]).column(0).to_numpy()


def _keys_of(table: pa.Table) -> list[int]:
    lists = table.column("passages").combine_chunks()
    keys: list[int] = pc.struct_field(lists.flatten(), KEY).to_pylist()
    return keys


def without_none(value: Any) -> Any:
    """Remove missing values, which Parquet stores as None, so that fields' defaults apply."""
    if isinstance(value, dict):
        return {name: without_none(item) for name, item in value.items() if item is not None}
    return [without_none(item) for item in value] if isinstance(value, list) else value


def trace_files(folder: Path) -> dict[str, Path]:
    """Return the files of finished pipelines and stages, by name."""
    tables = {path.stem: path for path in folder.glob("*.parquet") if is_questions(path)}
    return dict(sorted({**{path.stem: path for path in folder.glob("*.jsonl")}, **tables}.items()))


def read_traces(path: Path) -> Iterator[Trace]:
    """Yield the whole traces of a file, with one row group or line in memory.

    Raises:
        UserError: It is damaged.
    """
    return iter(TraceFile(path)) if path.suffix == ".parquet" else map(from_row, read_rows(path))


def find_trace(path: Path, question_id: str) -> Trace | None:
    """Return the trace of a question; None if the file has none.

    Raises:
        UserError: The file is damaged.
    """
    if path.suffix == ".parquet":
        return TraceFile(path).read([question_id]).get(question_id)
    return next((from_row(row) for row in read_rows(path) if row["id"] == question_id), None)


def find_traces(files: dict[str, Path], question_id: str) -> dict[str, Trace]:
    """Return a question's traces by pipeline.

    Raises:
        UserError: No pipeline has one, or a file is damaged.
    """
    by_pipeline = {name: trace for name, path in files.items() if (trace := find_trace(path, question_id)) is not None}
    if not by_pipeline:
        raise UserError(
            f"no trace of question {question_id} among those of {', '.join(files)}: it was not asked, or has another id"
        )
    return by_pipeline

"""Write files row by row. They appear under their name only when they are complete."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from reflectune.core.parquet import WRITING
from reflectune.core.partials import writing

ROW_GROUP = 1000
"""Rows of a Parquet row group."""


class Writer(Protocol):
    """Destination of rows."""

    def write(self, row: dict[str, Any]) -> None:
        """Append a row."""


@contextmanager
def open_writer(path: Path, schema: pa.Schema | None = None) -> Iterator[Writer]:
    """Open a file for rows: `.jsonl`, `.json` (one array, one row per line), or `.parquet`.

    The file is moved into place when the block ends. If the block fails, nothing is left.

    Args:
        path: The file.
        schema: The columns, for Parquet.
    """
    with writing(path) as partial, _writer(partial, path.suffix, schema) as writer:
        yield writer


def _writer(partial: Path, suffix: str, schema: pa.Schema | None) -> _Lines | _Parquet:
    if suffix == ".parquet":
        assert schema is not None  # every layout in Parquet names its columns
        return _Parquet(partial, schema)
    return _Lines(partial, is_array=suffix == ".json")


class _Lines:
    """A JSON file with one row per line, with brackets and commas if it is an array."""

    def __init__(self, path: Path, *, is_array: bool) -> None:
        self._file = path.open("w", encoding="utf-8")
        self._open, self._between, self._close = ("[\n", ",\n", "\n]\n") if is_array else ("", "\n", "\n")
        self._is_empty = True

    def write(self, row: dict[str, Any]) -> None:
        self._file.write(self._open if self._is_empty else self._between)
        self._file.write(json.dumps(row, ensure_ascii=False))
        self._is_empty = False

    def __enter__(self) -> _Lines:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._file:
            if kind is None:
                self._file.write((self._open if self._is_empty else "") + ("" if self._is_jsonl_empty else self._close))
                self._file.flush()
                os.fsync(self._file.fileno())

    @property
    def _is_jsonl_empty(self) -> bool:
        return self._is_empty and not self._open


class _Parquet:
    """A Parquet file, written one row group at a time."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self._schema, self._rows = schema, list[dict[str, Any]]()
        self._writer = pq.ParquetWriter(path, schema, **WRITING)

    def write(self, row: dict[str, Any]) -> None:
        self._rows.append(row)
        if len(self._rows) >= ROW_GROUP:
            self._flush()

    def _flush(self) -> None:
        self._writer.write_table(pa.Table.from_pylist(self._rows, schema=self._schema))
        self._rows.clear()

    def __enter__(self) -> _Parquet:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._writer:
            if kind is None and self._rows:
                self._flush()

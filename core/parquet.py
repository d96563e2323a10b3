"""Parquet files: written whole with a checksum of every page, read with all that is wrong in one line that names it."""

from __future__ import annotations

import io
import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from reflectune.core.durable import write_atomically
from reflectune.core.errors import UserError

UNREADABLE = (pa.ArrowException, OSError, UnicodeDecodeError)
"""What reading a damaged file raises: a changed bit is an OSError without a file."""
WRITING = {"compression": "zstd", "write_page_checksum": True}
"""How tables are written: a bit that changes on the disk is found when the page is read."""

_LISTS = (pa.ListType, pa.LargeListType, pa.FixedSizeListType, pa.ListViewType, pa.LargeListViewType)


def write_parquet(path: Path, table: pa.Table, row_group_size: int | None = None) -> None:
    """Write a table as one file, which appears whole or not at all."""
    buffer = io.BytesIO()
    pq.write_table(table, buffer, row_group_size=row_group_size, **WRITING)
    write_atomically(path, buffer.getvalue())


@contextmanager
def open_parquet(path: Path, fix: str) -> Iterator[pq.ParquetFile]:
    """A Parquet file, for reading within the block.

    Args:
        path: The file.
        fix: What to do if it is damaged.

    Raises:
        UserError: It is not there or is damaged, which may show only when its rows are read.
    """
    if not path.is_file():
        raise UserError(f"{path} is missing; {fix}")
    try:
        with open_checked(path) as file:
            yield file
    except UNREADABLE as error:
        raise UserError(f"{path} is no readable Parquet file: {error}; {fix}") from error


def open_checked(path: Path) -> pq.ParquetFile:
    """A file whose pages are held against their checksums, where they have them; it raises `UNREADABLE`."""
    return pq.ParquetFile(path, page_checksum_verification=True)


def stream_rows(
    file: pq.ParquetFile, columns: pa.Schema | None = None, batch_size: int = 256
) -> Iterator[dict[str, Any]]:
    """The rows of an open file, in order: all that it says it has.

    Args:
        file: From `open_parquet`, in its block.
        columns: Which to read, with the fields of those that are structures; None reads all.
        batch_size: How many rows are in memory at a time.

    Raises:
        ArrowInvalid: A column or a field of one is not there, or fewer rows can be read, which a changed bit of a
            page's header does without another error.
    """
    if columns is not None and (missing := list(_missing(columns, file.schema_arrow))):
        raise pa.ArrowInvalid(f"it has {', '.join(missing)}")
    read, maps = 0, [field.name for field in columns or () if pa.types.is_map(field.type)]
    for batch in file.iter_batches(batch_size=batch_size, columns=None if columns is None else columns.names):
        read += batch.num_rows
        rows = batch.drop_columns(maps).to_pylist()
        for name in maps:
            for row, value in zip(rows, _dicts(batch.column(name)), strict=True):
                row[name] = value
        yield from rows
    if read != file.metadata.num_rows:
        raise pa.ArrowInvalid(f"{read:,} of its {file.metadata.num_rows:,} rows can be read")


def _dicts(maps: pa.MapArray) -> Iterator[dict[str, Any] | None]:
    """Yield the maps of a column as dicts; `to_pylist(maps_as_pydicts=…)` takes three times as long."""
    keys, values = maps.keys.to_pylist(), maps.items.to_pylist()
    for is_valid, (start, end) in zip(maps.is_valid(), itertools.pairwise(maps.offsets.to_pylist()), strict=True):
        yield dict(zip(keys[start:end], values[start:end], strict=True)) if is_valid.as_py() else None


def _missing(wanted: pa.Schema | pa.StructType, held: pa.Schema | pa.DataType, of: str = "") -> Iterator[str]:
    """What a file lacks: columns, fields of structures (`evidence.section`), and columns not of lists or texts."""
    for field in wanted:
        name = f"{of}{field.name}"
        place = held.get_field_index(field.name) if isinstance(held, pa.Schema | pa.StructType) else -1
        if place < 0:
            yield f"no column `{name}`"
            continue
        kind, held_kind = field.type, held.field(place).type
        if pa.types.is_list(kind) and isinstance(held_kind, _LISTS):
            kind, held_kind = kind.value_type, held_kind.value_type
        if pa.types.is_null(held_kind):
            continue  # empty lists have no type
        if pa.types.is_struct(kind):
            yield from _missing(kind, held_kind, f"{name}.")
        elif pa.types.is_list(kind) and pa.types.is_struct(held_kind):
            yield f"no list in `{name}`"
        elif pa.types.is_string(kind) and _is_bytes(held_kind):
            yield f"no text in `{name}`"


def _is_bytes(kind: pa.DataType) -> bool:
    return pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind)

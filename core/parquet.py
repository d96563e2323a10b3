"""Parquet files, written atomically with a checksum of every page, which readers verify."""

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
"""Exceptions of reading a damaged file. A changed bit raises an OSError without a path."""
WRITING = {"compression": "zstd", "write_page_checksum": True, "write_statistics": False}
"""Options of writing: a bit that changes on the disk is found when its page is read. Statistics would put the first and
the last text of each row group in the footer, which is read at each opening."""

_LISTS = (pa.ListType, pa.LargeListType, pa.FixedSizeListType, pa.ListViewType, pa.LargeListViewType)


def write_parquet(path: Path, table: pa.Table, row_group_size: int | None = None) -> None:
    """Write a table as one file, atomically."""
    buffer = io.BytesIO()
    pq.write_table(table, buffer, row_group_size=row_group_size, **WRITING)
    write_atomically(path, buffer.getvalue())


@contextmanager
def open_parquet(path: Path, fix: str) -> Iterator[pq.ParquetFile]:
    """Open a Parquet file for reading inside this block.

    Args:
        path: The file.
        fix: Advice to the user if it is damaged.

    Raises:
        UserError: It is missing or damaged, which may show only when its rows are read.
    """
    if not path.is_file():
        raise UserError(f"{path} is missing; {fix}")
    try:
        with open_checked(path) as file:
            yield file
    except UNREADABLE as error:
        raise UserError(f"{path} is not a readable Parquet file: {error}; {fix}") from error


def open_checked(path: Path) -> pq.ParquetFile:
    """Open a file whose pages are compared with their checksums if they have them. May raise `UNREADABLE`."""
    return pq.ParquetFile(path, page_checksum_verification=True)


def stream_rows(
    file: pq.ParquetFile, columns: pa.Schema | None = None, batch_size: int = 256
) -> Iterator[dict[str, Any]]:
    """Yield the rows of an open file in order.

    Args:
        file: File of `open_parquet`, inside its block.
        columns: Columns to read, with the fields of structures; None reads all.
        batch_size: Rows in memory at a time.

    Raises:
        ArrowInvalid: A column or field is missing, or the file has fewer rows than its footer says. A changed bit in a
            page's header raises no other error.
    """
    if columns is not None and (missing := list(_missing(columns, file.schema_arrow))):
        raise pa.ArrowInvalid(f"it has {', '.join(missing)}")
    read = 0
    maps = [field.name for field in columns or () if pa.types.is_map(field.type)]
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


def _missing(expected: pa.Schema | pa.StructType, held: pa.Schema | pa.DataType, prefix: str = "") -> Iterator[str]:
    """Yield the columns and fields (`evidence.section`) that are missing, or not lists, maps or texts as expected."""
    for field in expected:
        name = f"{prefix}{field.name}"
        position = held.get_field_index(field.name) if isinstance(held, pa.Schema | pa.StructType) else -1
        if position < 0:
            yield f"no column `{name}`"
            continue
        kind, held_kind = field.type, held.field(position).type
        if pa.types.is_list(kind) and isinstance(held_kind, _LISTS):
            kind, held_kind = kind.value_type, held_kind.value_type
        if pa.types.is_null(held_kind):
            continue  # empty lists have no type
        if pa.types.is_struct(kind):
            yield from _missing(kind, held_kind, f"{name}.")
        elif pa.types.is_list(kind) and pa.types.is_struct(held_kind):
            yield f"no list in `{name}`"
        elif pa.types.is_map(kind) and not pa.types.is_map(held_kind):
            yield f"no map in `{name}`"
        elif pa.types.is_string(kind) and _is_bytes(held_kind):
            yield f"no text in `{name}`"


def _is_bytes(kind: pa.DataType) -> bool:
    return pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind)

"""Parquet files: written whole with a checksum of every page, read with all that is wrong in one line that names it."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
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
    file: pq.ParquetFile, columns: Sequence[str] | None = None, batch_size: int = 256
) -> Iterator[dict[str, Any]]:
    """The rows of an open file, in order: all that it says it has.

    Args:
        file: From `open_parquet`, in its block.
        columns: Which to read; None reads all.
        batch_size: How many rows are in memory at a time.

    Raises:
        ArrowInvalid: A column is not there, or fewer rows can be read, which a changed bit of a page's header does
            without another error.
    """
    if missing := [name for name in columns or () if name not in file.schema_arrow.names]:
        raise pa.ArrowInvalid(f"it lacks the column `{'`, `'.join(missing)}`")
    read = 0
    for batch in file.iter_batches(batch_size=batch_size, columns=None if columns is None else list(columns)):
        read += batch.num_rows
        yield from batch.to_pylist()
    if read != file.metadata.num_rows:
        raise pa.ArrowInvalid(f"{read:,} of its {file.metadata.num_rows:,} rows can be read")

"""Opening Parquet files: whatever of one can't be read is one line that names it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from reflectune.core.errors import UserError


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
        with pq.ParquetFile(path) as file:
            yield file
    except (pa.ArrowException, OSError) as error:  # a bit that changed is an OSError without a file
        raise UserError(f"{path} is no readable Parquet file: {error}; {fix}") from error

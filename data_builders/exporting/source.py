"""Reads reflection data example by example, so that a large file never loads whole."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from reflectune.core.errors import UserError
from reflectune.core.types import TrainingExample
from reflectune.data_builders.exporting.config import ExportConfig
from reflectune.data_builders.reflection_data import (
    MANIFEST,
    PROMPTED_SCHEMA,
    SCHEMA,
    example_from_row,
    image_roots,
    missing_columns,
    prompted_from_row,
    read_manifest,
)
from reflectune.models.schemes.base import Scheme, find_scheme

BATCH = 256
"""Examples that are in memory at a time."""


def data_file(config: ExportConfig) -> Path:
    """The Parquet file of the split.

    Raises:
        UserError: There is none.
    """
    path = Path(config.data)
    file = path if path.is_file() else path / f"{config.split}.parquet"
    if not file.is_file():
        raise UserError(f"reflection data not found: {file}; build it with data_builders.build_mr2ag, or set `split`")
    return file


def scheme_and_images(config: ExportConfig) -> tuple[Scheme, tuple[Path, ...]]:
    """The data's scheme, and the folders that its image paths may lead into; relative ones start at the first.

    Raises:
        UserError: Another scheme is asked for than the manifest names.
    """
    if not Path(config.folder(), MANIFEST).is_file():
        return find_scheme(config.scheme), (Path(config.image_root), config.folder())
    manifest = read_manifest(config.folder())
    if config.scheme and config.scheme != manifest.scheme:
        raise UserError(f"{config.data} was built for the scheme `{manifest.scheme}`, and `scheme` is {config.scheme}")
    if config.image_root:
        return find_scheme(manifest.scheme), (Path(config.image_root), config.folder())
    return find_scheme(manifest.scheme), image_roots(config.folder(), manifest)


def read(path: Path, scheme: Scheme) -> Iterator[TrainingExample]:
    """The examples of a Parquet file, in order.

    Raises:
        UserError: It is no readable Parquet file, or lacks a column.
    """
    prompted = scheme.is_prompted
    names = (PROMPTED_SCHEMA if prompted else SCHEMA).names
    try:
        with pq.ParquetFile(path) as file:
            found = file.schema_arrow.names
            if missing := missing_columns(PROMPTED_SCHEMA if prompted else SCHEMA, found):
                raise UserError(f"{path} lacks the column `{'`, `'.join(missing)}`; found {', '.join(found)}")
            for batch in file.iter_batches(batch_size=BATCH, columns=[name for name in names if name in found]):
                yield from map(prompted_from_row if prompted else example_from_row, batch.to_pylist())
    except pa.ArrowException as error:
        raise UserError(f"{path} is no readable Parquet file: {error}; build it again") from error

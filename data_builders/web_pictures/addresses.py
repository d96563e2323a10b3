"""The addresses of a knowledge base's pictures as a table, read off its file once."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from reflectune.core.errors import UserError
from reflectune.core.hashing import fingerprint
from reflectune.core.parquet import WRITING, open_parquet
from reflectune.core.partials import writing
from reflectune.core.rejected import BadRow, Rejected
from reflectune.data_builders.conversion.ids import SeenIds, hash_ids
from reflectune.data_builders.conversion.sources import stat_files
from reflectune.data_builders.readers.images import escapes
from reflectune.data_builders.readers.registry import knowledge_reader
from reflectune.data_builders.web_pictures.config import PictureConfig

CHUNK: Final = 256
"""Pictures that are fetched, and noted, together."""

_GROUP = 1 << 14
_SCHEMA = pa.schema([("url", pa.string()), ("path", pa.string())])


def addresses_key(config: PictureConfig) -> str:
    """What the addresses depend on."""
    return fingerprint([config.knowledge, stat_files([config.source()])])


def write_addresses(config: PictureConfig, path: Path, key: str) -> int:
    """Read the knowledge base and write down the pictures that it names, each once; memory holds eight bytes of each.

    The table has `url` and `path` of each picture, in the knowledge base's order.

    Returns:
        How many there are.

    Raises:
        UserError: It names none, or the file is damaged. A bad row is passed over: the conversion says what it is.
    """
    total = 0
    with writing(path) as partial:
        schema = _SCHEMA.with_metadata({"key": key})
        with pq.ParquetWriter(partial, schema, **WRITING) as writer:
            pictures = _distinct(_named(config))
            while group := list(islice(pictures, _GROUP)):
                total += len(group)
                columns = [list(column) for column in zip(*group, strict=True)]
                writer.write_table(pa.table(columns, schema=schema))
        if not total:
            raise UserError(f"{config.source()} names no pictures by address; is it the knowledge base of E-VQA?")
    return total


def read_key(path: Path) -> str:
    """What the addresses were read from; "" if there are none yet."""
    if not path.is_file():
        return ""
    with open_parquet(path, "delete it, and run the same command again") as file:
        return str((file.schema_arrow.metadata or {}).get(b"key", b"").decode())


def count_addresses(path: Path) -> int:
    """How many there are."""
    with open_parquet(path, "delete it, and run the same command again") as file:
        return int(file.metadata.num_rows)


def read_chunks(path: Path, limit: int = 0) -> Iterator[list[tuple[str, str]]]:
    """The addresses with their paths, in chunks of `CHUNK`."""
    with open_parquet(path, "delete it, and run the same command again") as file:
        rows = (row for batch in file.iter_batches(batch_size=CHUNK) for row in batch.to_pylist())
        pairs = ((row["url"], row["path"]) for row in islice(rows, limit or None))
        while chunk := list(islice(pairs, CHUNK)):
            yield chunk


def _named(config: PictureConfig) -> Iterator[tuple[str, str]]:
    reader, rejected = knowledge_reader(config.knowledge), Rejected(None)
    for _, row in reader.read_source(config.source(), rejected):
        try:
            yield from (pair for pair in reader.pictures(row) if not escapes(pair[1]))
        except BadRow as error:
            rejected(error)


def _distinct(pictures: Iterator[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    seen = SeenIds()
    while group := list(islice(pictures, _GROUP)):
        again = set(seen.add(hash_ids(path for _, path in group)).tolist())
        yield from (pair for position, pair in enumerate(group) if position not in again)

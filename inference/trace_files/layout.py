"""Traces as two Parquet files: a row for each question, and beside it the text of each passage, once."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from reflectune.core.errors import UserError
from reflectune.core.parquet import UNREADABLE, WRITING, open_checked
from reflectune.core.partials import writing
from reflectune.core.rows import schema_of
from reflectune.core.types import Passage
from reflectune.inference.trace import PassageTrace, Trace

QUESTIONS_AT_ONCE: Final = 256
"""Questions of a row group, which is what is in memory at a time: with 150 passages each, 3 MB of columns."""
PASSAGES_AT_ONCE: Final = 8192
"""Passages of a row group of texts: with 100 words each, 5 MB."""
KEY: Final = "key"

_FINGERPRINT: Final = b"fingerprint"
_TEXTS: Final = ".passages.parquet"


def _without_text() -> pa.DataType:
    """The columns of a `PassageTrace` whose passage is known by its key."""
    columns = [column for column in schema_of(PassageTrace) if column.name != "passage"]
    return pa.struct([pa.field(KEY, pa.int64()), *columns])


QUESTIONS: Final = pa.schema(
    [
        pa.field(column.name, pa.list_(_without_text())) if column.name == "passages" else column
        for column in schema_of(Trace)
    ]
)
"""Columns of the questions' file: the fields of a `Trace`, with each passage's key in the place of its text."""
PASSAGES: Final = pa.schema([pa.field(KEY, pa.int64()), *schema_of(Passage)])
"""Columns of the passages' file."""


def passages_path(path: Path) -> Path:
    """Where the passages of a questions' file lie."""
    return path.with_suffix(_TEXTS)


def is_questions(path: Path) -> bool:
    """Whether a Parquet file is one of questions, by its name."""
    return not path.name.endswith(_TEXTS)


def passage_key(passage: Mapping[str, Any]) -> int:
    """A passage's key: 64 bits of a hash of where it stands and of all that the model reads of it."""
    content = json.dumps([passage[name] for name in PASSAGES.names[1:]], ensure_ascii=False)
    return int.from_bytes(blake2b(content.encode(), digest_size=8).digest(), "little", signed=True)


def write_traces(path: Path, fingerprint: str, rows: Iterable[Mapping[str, Any]], known: np.ndarray) -> np.ndarray:
    """Write a pair of files, a row group at a time; both are whole or not there.

    Args:
        path: The questions' file.
        fingerprint: Hash of everything that determines a trace.
        rows: Traces, as `to_row` makes them.
        known: Sorted keys of passages whose text lies in another file, and is not written.

    Returns:
        The keys of `known` and of all passages of these traces, sorted.
    """
    with (
        parquet_file(path, QUESTIONS, fingerprint) as questions,
        parquet_file(passages_path(path), PASSAGES, fingerprint) as passages,  # takes its place first
    ):
        remaining = iter(rows)
        while some := list(itertools.islice(remaining, QUESTIONS_AT_ONCE)):
            texts: dict[int, dict[str, Any]] = {}
            questions.write_table(pa.Table.from_pylist([_parted(row, texts) for row in some], QUESTIONS))
            keys = np.fromiter(texts, np.int64, len(texts))
            new = keys[~np.isin(keys, known)].tolist()
            if new:
                passages.write_table(pa.Table.from_pylist([{KEY: key, **texts[key]} for key in new], PASSAGES))
                known = np.union1d(known, new)
    return known


@contextmanager
def parquet_file(path: Path, schema: pa.Schema, fingerprint: str) -> Iterator[pq.ParquetWriter]:
    """A Parquet file to write tables into, each a row group; it takes its place, on the disk, when the block ends."""
    marked = schema.with_metadata({_FINGERPRINT: fingerprint.encode()})
    with writing(path) as partial:
        with pq.ParquetWriter(partial, marked, **WRITING) as writer:
            yield writer
        with partial.open("rb") as file:
            os.fsync(file.fileno())


def open_table(path: Path, fingerprint: str | None = None) -> pq.ParquetFile:
    """Open a file that `parquet_file` wrote.

    Raises:
        UserError: It is damaged or missing, or has columns that no version up to this one writes, or was written under
            another fingerprint than one that is given.
    """
    with reading(path), frugal():  # a file takes memory from where it did when it was opened
        file = open_checked(path)
        known = QUESTIONS if is_questions(path) else PASSAGES
        if not _is_part_of(pa.struct(list(file.schema_arrow)), pa.struct(list(known))):
            raise pa.ArrowInvalid("its columns are not those of this version")
        written = (file.schema_arrow.metadata or {}).get(_FINGERPRINT, b"").decode()
    if fingerprint not in (None, written):
        raise UserError(
            f"{path} was written with other settings, another model, index or data set (fingerprint {written}, now "
            f"{fingerprint}); choose another output folder, or delete it to start again"
        )
    return file


@contextmanager
def frugal() -> Iterator[None]:
    """A block in which Arrow takes memory from the system, behind which what is free is given back to it."""
    pool = pa.default_memory_pool()
    pa.set_memory_pool(pa.system_memory_pool())
    try:
        yield
    finally:
        pa.system_memory_pool().release_unused()
        pa.set_memory_pool(pool)


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """A block that reads a file of traces.

    Raises:
        UserError: The file is damaged or missing.
    """
    try:
        yield
    except UNREADABLE as error:
        raise UserError(f"{path} can't be read as traces ({error}); move it away to start again") from error


def read_column(path: Path, name: str, fingerprint: str | None = None) -> pa.ChunkedArray:
    """One column of a file, whole.

    Raises:
        UserError: As `open_table`.
    """
    with open_table(path, fingerprint) as file, reading(path):
        return file.read([name]).column(0)


def completed(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """A table that an earlier version may have written, with all columns of this one; what it lacks is missing."""
    return pa.concat_tables([schema.empty_table(), table], promote_options="default")


def _is_part_of(held: pa.DataType, known: pa.DataType) -> bool:
    """Whether a type is the same but for fields that structures lack: a later version has them."""
    if pa.types.is_struct(held) and pa.types.is_struct(known):
        places = [(field, known.get_field_index(field.name)) for field in held]
        return all(place >= 0 and _is_part_of(field.type, known.field(place).type) for field, place in places)
    if pa.types.is_list(held) and pa.types.is_list(known):
        return _is_part_of(held.value_type, known.value_type)
    return bool(held == known)


def _parted(row: Mapping[str, Any], texts: dict[int, dict[str, Any]]) -> dict[str, Any]:
    """A trace's row with keys in the place of passages, which are added to `texts`."""
    passages = []
    for read in row["passages"]:
        key = passage_key(read["passage"])
        texts[key] = read["passage"]
        passages.append({**read, KEY: key})
    return {**row, "passages": passages}

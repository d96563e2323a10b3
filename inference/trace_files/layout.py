"""Layout of traces as a pair of Parquet files: one row per question, and one row per distinct passage."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from reflectune.core.errors import UserError
from reflectune.core.parquet import UNREADABLE, WRITING, open_checked
from reflectune.core.partials import writing
from reflectune.core.rows import schema_of
from reflectune.core.types import Passage
from reflectune.inference.trace import PassageTrace, Trace

QUESTIONS_AT_ONCE: Final = 256
"""Questions in a row group, which is read at once: 3 MB of columns with 150 passages each."""
KEY: Final = "key"

_FINGERPRINT: Final = b"fingerprint"
_TEXTS: Final = ".passages.parquet"

_WITHOUT_TEXT: Final = pa.struct(
    [pa.field(KEY, pa.int64()), *(c for c in schema_of(PassageTrace) if c.name != "passage")]
)
"""Columns of a `PassageTrace` with the passage replaced by its key."""

QUESTIONS: Final = pa.schema(
    [
        pa.field(column.name, pa.list_(_WITHOUT_TEXT)) if column.name == "passages" else column
        for column in schema_of(Trace)
    ]
)
"""Columns of the questions' file: the fields of a `Trace`, with each passage's text replaced by its key."""
PASSAGES: Final = pa.schema([pa.field(KEY, pa.int64()), *schema_of(Passage)])
"""Columns of the passages' file."""


def passages_path(path: Path) -> Path:
    """Return the path of the passages of a questions' file."""
    return path.with_suffix(_TEXTS)


def is_questions(path: Path) -> bool:
    """Return True if a Parquet file holds questions, by its name."""
    return not path.name.endswith(_TEXTS)


def passage_key(passage: Mapping[str, Any]) -> int:
    """Hash a passage's position and text to a 64-bit key."""
    content = json.dumps([passage[name] for name in PASSAGES.names[1:]], ensure_ascii=False)
    return int.from_bytes(blake2b(content.encode(), digest_size=8).digest(), "little", signed=True)


def write_traces(path: Path, fingerprint: str, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write a pair of files, one row group at a time. Passages of an earlier pair at this path are kept.

    So if a run is killed between replacing the two files, the passages' file serves both the old and the new questions.

    Args:
        path: The questions' file.
        fingerprint: Hash of everything that determines a trace.
        rows: Traces, as returned by `to_row`.
    """
    remaining, texts_file, written = iter(rows), passages_path(path), set[int]()
    with (
        parquet_file(path, QUESTIONS, fingerprint) as questions,
        parquet_file(texts_file, PASSAGES, fingerprint) as passages,  # replaced first
    ):
        if path.exists():
            with open_table(texts_file, fingerprint) as earlier, reading(texts_file):
                for number in range(earlier.num_row_groups):
                    group = earlier.read_row_group(number)
                    passages.write_table(group)
                    written.update(group.column(KEY).to_pylist())
        while group_rows := list(itertools.islice(remaining, QUESTIONS_AT_ONCE)):
            texts: dict[int, dict[str, Any]] = {}
            questions.write_table(pa.Table.from_pylist([_with_keys(row, texts) for row in group_rows], QUESTIONS))
            new = [{KEY: key, **text} for key, text in texts.items() if key not in written]
            if new:
                passages.write_table(pa.Table.from_pylist(new, PASSAGES))
                written.update(texts)


@contextmanager
def parquet_file(path: Path, schema: pa.Schema, fingerprint: str) -> Iterator[pq.ParquetWriter]:
    """Open a Parquet file for writing. It is synced and replaces `path` when the block ends."""
    marked = schema.with_metadata({_FINGERPRINT: fingerprint.encode()})
    with writing(path) as partial:
        with pq.ParquetWriter(partial, marked, **WRITING) as writer:
            yield writer
        with partial.open("rb") as file:
            os.fsync(file.fileno())


def open_table(path: Path, fingerprint: str | None = None) -> pq.ParquetFile:
    """Open a file that `parquet_file` wrote.

    Raises:
        UserError: It is damaged or missing, was written by another version, or has a different fingerprint.
    """
    with reading(path):
        file = open_checked(path)
        if not file.schema_arrow.equals(QUESTIONS if is_questions(path) else PASSAGES):
            raise pa.ArrowInvalid("it was written by another version")
        written = (file.schema_arrow.metadata or {}).get(_FINGERPRINT, b"").decode()
    if fingerprint not in (None, written):
        raise UserError(
            f"{path} was written with other settings, another model, index or data set (fingerprint {written}, now "
            f"{fingerprint}); choose another output folder, or delete it to start again"
        )
    return file


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Convert Arrow's errors inside this block.

    Raises:
        UserError: The file is damaged or missing.
    """
    try:
        yield
    except UNREADABLE as error:
        raise UserError(f"{path} can't be read as traces ({error}); move it away to start again") from error


def _with_keys(row: Mapping[str, Any], texts: dict[int, dict[str, Any]]) -> dict[str, Any]:
    """Replace the passages of a trace's row by keys, and add them to `texts`."""
    passages = []
    for read in row["passages"]:
        key = passage_key(read["passage"])
        texts[key] = read["passage"]
        passages.append({**read, KEY: key})
    return {**row, "passages": passages}

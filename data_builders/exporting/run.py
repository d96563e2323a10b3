"""Export one split: read it example by example, flatten it, and write it with its companion files."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from reflectune.core.durable import read_record, write_atomically, write_json
from reflectune.core.errors import UserError
from reflectune.core.parquet import WRITING
from reflectune.core.partials import writing
from reflectune.core.rows import from_row, to_row
from reflectune.data_builders.exporting.config import ExportConfig
from reflectune.data_builders.exporting.conversations import ConversationForm, Neutraliser, conversations
from reflectune.data_builders.exporting.layouts import ImageMode, companions, find_layout, parquet_schema, record
from reflectune.data_builders.exporting.source import BadRows, ImagePlacer, data_file, scheme_and_images
from reflectune.formats.reflection_data import stream_examples
from reflectune.models.schemes.base import Scheme
from reflectune.models.schemes.examples import TrainingExample

RECORD: Final = "export.json"


@dataclass(frozen=True)
class ExportRecord:
    """Content of an output folder, kept in its `export.json`.

    Attributes:
        to: Name of the layout.
        scheme: Name of the data's scheme.
        images: Absolute paths, or copies.
        space: True if a space separates tokens and answers.
        files: File of each split, relative to the folder.
        rows: Number of rows of each split.
    """

    to: str
    scheme: str
    images: ImageMode
    space: bool
    files: dict[str, str] = field(default_factory=dict)
    rows: dict[str, int] = field(default_factory=dict)


@dataclass
class ExportSummary:
    """Counts of an export: examples, rows, images, bad rows, examples whose text was altered; and a sample row."""

    examples: int = 0
    rows: int = 0
    images: int = 0
    bad: int = 0
    altered: int = 0
    sample: dict[str, Any] = field(default_factory=dict)


def export(config: ExportConfig) -> ExportSummary:
    """Write a split of reflection data in another tool's layout.

    Raises:
        UserError: A row is bad, or the output folder holds something else.
    """
    path, output, split = data_file(Path(config.data), config.split), Path(config.output), config.split
    scheme, roots = scheme_and_images(path.parent, config.scheme, config.image_root)
    layout, is_written = find_layout(config.to, config.images), not config.dry_run
    contents = _earlier(output, split, ExportRecord(config.to, scheme.name, config.images, config.space))
    file = layout.file.format(split=split, scheme=scheme.name)
    placer = ImagePlacer(roots, config.images, (output / file).parent, write=is_written)
    clean, bad = Neutraliser(layout.separators), BadRows(path, config.on_error)
    form = ConversationForm(layout.masking, clean, " " if config.space else "")
    summary = ExportSummary()

    def records(example: TrainingExample) -> list[dict[str, Any]]:
        return [record(layout, row, placer(row.image)) for row in conversations(example, scheme, form)]

    schema = parquet_schema(layout) if file.endswith(".parquet") else None
    with open_writer(output / file, schema) if is_written else nullcontext() as writer:
        for example in stream_examples(path, scheme.example_type, scheme.problem, bad.add):
            changed = clean.changed
            summary.examples += 1
            try:
                rows = records(example)
            except UserError as error:
                bad.add(example.id, str(error))
                continue
            summary.sample = summary.sample or rows[-1]
            summary.rows += len(rows)
            summary.altered += clean.changed > changed
            if writer is not None:
                for row in rows:
                    writer.write(row)
        bad.settle(output, write=is_written)
        if not summary.rows:
            raise UserError(f"{path} has no row to export; build it again, with questions of that split")
    summary.images, summary.bad = placer.count, bad.count
    if is_written:
        _write_companions(output, scheme, contents, {split: file}, {split: summary.rows})
    return summary


def describe(config: ExportConfig, summary: ExportSummary) -> str:
    """Return a summary in a few lines."""
    lines = [f"{summary.examples:,} examples, {summary.rows:,} rows, {summary.images:,} images"]
    if summary.altered:
        lines.append(f"{summary.altered:,} examples have text that spelt a special token; a space breaks it now")
    if summary.bad:
        lines.append(f"{summary.bad:,} bad rows left out" + ("" if config.dry_run else ", listed in rejected.jsonl"))
    if config.dry_run:
        lines += ["a row:", json.dumps(summary.sample, indent=2, ensure_ascii=False), "nothing was written"]
    else:
        lines.append(f"written to {config.output}; its README.md has the command")
    return "\n".join(lines)


def _earlier(output: Path, split: str, expected: ExportRecord) -> ExportRecord:
    """Return the record of the splits in the output folder; refuse a folder with other files or settings."""
    if not (output / RECORD).is_file():
        visible = [path.name for path in output.iterdir() if path.name[0] != "."] if output.is_dir() else []
        was_cut_off = expected.images == "copy" and set(visible) <= {"images", split}
        if visible and not was_cut_off:
            raise UserError(f"`output`: {output} holds other files ({visible[0]}, …); choose an empty or a new folder")
        return expected
    try:
        earlier = from_row(ExportRecord, read_record(output / RECORD, "the record of an export"))
    except ValueError as error:
        raise UserError(f"{output / RECORD} is damaged: {error}; export again into a new folder") from error
    for name in ("to", "scheme", "images", "space"):
        found, value = getattr(earlier, name), getattr(expected, name)
        if found != value:
            raise UserError(f"`output`: {output} holds an export with {name} {found}, not {value}")
    return earlier


def _write_companions(
    output: Path, scheme: Scheme, earlier: ExportRecord, files: dict[str, str], rows: dict[str, int]
) -> None:
    contents = replace(earlier, files={**earlier.files, **files}, rows={**earlier.rows, **rows})
    texts = companions(contents.to, scheme, contents.images, contents.files, contents.rows)
    for name, text in texts.items():
        write_atomically(output / name, text)
    scheme.save(output)
    write_json(output / RECORD, to_row(contents))


ROW_GROUP = 1000
"""Rows of a Parquet row group."""


@contextmanager
def open_writer(path: Path, schema: pa.Schema | None = None) -> Iterator[_Lines | _Parquet]:
    """Open a file for rows: `.jsonl`, `.json` (one array, one row per line), or `.parquet`.

    The file is moved into place when the block ends. If the block fails, nothing is left.

    Args:
        path: The file.
        schema: The columns, for Parquet.
    """
    with writing(path) as partial:
        is_table = path.suffix == ".parquet"
        with _Parquet(partial, schema) if is_table else _Lines(partial, is_array=path.suffix == ".json") as writer:
            yield writer


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

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with self._file:
            if kind is None:
                if self._is_empty:
                    self._file.write(self._open)
                if self._open or not self._is_empty:
                    self._file.write(self._close)
                self._file.flush()
                os.fsync(self._file.fileno())


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

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with self._writer:
            if kind is None and self._rows:
                self._flush()

"""Export one split: read it example by example, flatten it, and write it with its companion files."""

from __future__ import annotations

import itertools
import json
import os
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from reflectune.core.durable import read_record, write_atomically, write_json
from reflectune.core.errors import UserError
from reflectune.core.parquet import WRITING
from reflectune.core.partials import writing
from reflectune.core.rejected import REJECTED
from reflectune.core.rows import from_row, to_row
from reflectune.data_builders.exporting.config import DataExportConfig
from reflectune.data_builders.exporting.conversations import ConversationForm, Neutraliser, conversations
from reflectune.data_builders.exporting.layouts import ImageMode, companions, find_layout, parquet_schema, record
from reflectune.data_builders.exporting.source import BadRows, ImagePlacer, data_file, scheme_and_images
from reflectune.formats.reflection_data import stream_examples
from reflectune.models.schemes.base import Scheme

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


def export(config: DataExportConfig) -> ExportSummary:
    """Write a split of reflection data in another tool's layout.

    Raises:
        UserError: A row is bad, or the output folder holds something else.
    """
    path, output, split = data_file(Path(config.data), config.split), Path(config.output), config.split
    scheme, roots = scheme_and_images(path.parent, config.scheme, config.image_root)
    layout, is_written = find_layout(config.to, config.images), not config.dry_run
    file = layout.file.format(split=split, scheme=scheme.name)
    own, expected = {split, Path(file).parts[0]}, ExportRecord(config.to, scheme.name, config.images, config.space)
    contents = _earlier(output, own, expected)
    placer = ImagePlacer(roots, config.images, (output / file).parent, write=is_written)
    clean, bad = Neutraliser(layout.separators), BadRows(path, config.on_error)
    form = ConversationForm(layout.masking, clean, " " if config.space else "")
    summary = ExportSummary()

    def rows() -> Iterator[dict[str, Any]]:
        for example in stream_examples(path, scheme.example_type, scheme.problem, bad.add):
            changed = clean.changed
            summary.examples += 1
            try:
                records = [record(layout, row, placer(row.image)) for row in conversations(example, scheme, form)]
            except UserError as error:
                bad.add(example.id, str(error))
                continue
            summary.sample = summary.sample or records[-1]
            summary.rows += len(records)
            summary.altered += clean.changed > changed
            yield from records
        bad.settle(output, write=is_written)
        if not summary.rows and bad.count:
            raise UserError(f"all {bad.count:,} rows of {path} are bad; {output / REJECTED} has the reasons")
        if not summary.rows:
            raise UserError(f"{path} has no row to export; build it again, with questions of that split")

    if is_written:
        write_export(output / file, rows(), parquet_schema(layout) if file.endswith(".parquet") else None)
        _write_companions(output, scheme, contents, {split: file}, {split: summary.rows})
    else:
        deque(rows(), maxlen=0)
    summary.images, summary.bad = placer.count, bad.count
    return summary


def describe(config: DataExportConfig, summary: ExportSummary) -> str:
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


def _earlier(output: Path, own: set[str], expected: ExportRecord) -> ExportRecord:
    """Return the record of the splits in the output folder; refuse a folder with other files or settings.

    An interrupted export may have left its `own` files, images, and the list of bad rows.
    """
    if not (output / RECORD).is_file():
        visible = [path.name for path in output.iterdir() if path.name[0] != "."] if output.is_dir() else []
        if others := sorted(set(visible) - own - {"images", REJECTED}):
            raise UserError(f"`output`: {output} holds other files ({others[0]}, …); choose an empty or a new folder")
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


ROW_GROUP: Final = 1000
"""Rows of a Parquet row group."""


def write_export(path: Path, rows: Iterable[dict[str, Any]], schema: pa.Schema | None) -> None:
    """Write rows as `.jsonl`, `.json` (one array, one row per line) or `.parquet`, atomically.

    Args:
        path: The file.
        rows: The rows, at least one; an error that they raise leaves the earlier file.
        schema: The columns, for Parquet.
    """
    with writing(path) as partial:
        if schema is not None:
            remaining = iter(rows)
            with pq.ParquetWriter(partial, schema, **WRITING) as table:
                while group := list(itertools.islice(remaining, ROW_GROUP)):
                    table.write_table(pa.Table.from_pylist(group, schema=schema))
            return
        before, between, after = ("[\n", ",\n", "\n]\n") if path.suffix == ".json" else ("", "\n", "\n")
        with partial.open("w", encoding="utf-8") as file:
            for number, row in enumerate(rows):
                file.write((between if number else before) + json.dumps(row, ensure_ascii=False))
            file.write(after)
            file.flush()
            os.fsync(file.fileno())

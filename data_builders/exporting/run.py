"""Exports one split: reads it example by example, flattens it, writes it, and what goes with it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from reflectune.core.durable import read_record, write_atomically, write_json
from reflectune.core.errors import UserError
from reflectune.core.paths import absolute_folders
from reflectune.data_builders.exporting import llamafactory, llava, ms_swift, trl
from reflectune.data_builders.exporting.config import ExportConfig
from reflectune.data_builders.exporting.images import ImagePlacer
from reflectune.data_builders.exporting.layout import Exported, Layout
from reflectune.data_builders.exporting.rows import Neutraliser, Row, RowForm, rows_of
from reflectune.data_builders.exporting.source import BadRows, data_file, scheme_and_images
from reflectune.data_builders.exporting.writers import Writer, open_writer
from reflectune.formats.reflection_data import stream_examples
from reflectune.models.schemes.base import Scheme
from reflectune.models.schemes.examples import TrainingExample

LAYOUTS: Final[Mapping[str, Layout]] = {
    "trl": trl.LAYOUT,
    "llamafactory": llamafactory.LAYOUT,
    "ms-swift": ms_swift.LAYOUT,
    "llava": llava.LAYOUT,
}
"""The layouts, as `--to` names them."""

RECORD = "export.json"
"""What an output folder holds."""


@dataclass(frozen=True)
class Summary:
    """What an export did: examples read, rows written, images named, bad rows, examples whose text was altered."""

    examples: int
    rows: int
    images: int
    bad: int
    altered: int
    sample: dict[str, Any]


def export(config: ExportConfig) -> Summary:
    """Write a split of reflection data in another tool's layout.

    Raises:
        UserError: A row is bad, or the output folder holds something else.
    """
    layout = LAYOUTS[config.to]
    path, output = data_file(config), Path(config.output)
    scheme, roots = scheme_and_images(config)
    exported = _with_split(config, scheme, _earlier(config, scheme))
    file = layout.file(exported, config.split)
    placer = ImagePlacer(roots, config.images, output / layout.image_folder(config.split), write=not config.dry_run)
    clean, bad = Neutraliser(layout.separators), BadRows(path, config.on_error)
    form = RowForm(layout.masking, clean, " " if config.space else "")
    schema = layout.schema() if layout.schema and file.endswith(".parquet") else None
    examples = rows = altered = 0
    sample: dict[str, Any] = {}
    with nullcontext() if config.dry_run else open_writer(output / file, schema) as writer:
        stream: Iterator[TrainingExample] = stream_examples(path, scheme.example_type, scheme.problem, bad.add)
        for example in stream:
            before, examples = clean.changed, examples + 1
            try:
                records = list(_records(rows_of(example, scheme, form), layout, placer, config.images))
            except UserError as error:
                bad.add(example.id, str(error))
                continue
            sample = sample or records[-1]
            rows, altered = rows + len(records), altered + (clean.changed > before)
            _write(writer, records)
        bad.settle(output, write=not config.dry_run)
        if not rows:
            raise UserError(f"{path} holds no row to export; build it again, with questions of that split")
    if not config.dry_run:
        _write_companions(config, layout, exported, rows, _image_folders(output, roots))
    return Summary(examples, rows, placer.count, bad.count, altered, sample)


def _records(rows: Iterator[Row], layout: Layout, placer: ImagePlacer, images: str) -> Iterator[dict[str, Any]]:
    for row in rows:
        yield layout.record(row, placer(row.image), images)


def _write(writer: Writer | None, records: list[dict[str, Any]]) -> None:
    for record in records if writer else ():
        writer.write(record)  # type: ignore[union-attr]


def _earlier(config: ExportConfig, scheme: Scheme) -> dict[str, Any]:
    """The record of the splits that are there already.

    Raises:
        UserError: The folder holds another layout, scheme, way of naming images or `space`, or something else.
    """
    output = Path(config.output)
    wanted = _ways(config, scheme)
    record = earlier_export(output)
    if not record:
        visible = [path.name for path in output.iterdir() if path.name[0] != "."] if output.is_dir() else []
        if visible and not _is_cut_off(visible, config):
            raise UserError(f"`output`: {output} holds other files ({visible[0]}, …); choose an empty or a new folder")
        return {**wanted, "files": {}, "rows": {}}
    earlier = {"space": True, **record}  # which early exports don't say
    for name, value in wanted.items():
        if earlier.get(name) != value:
            raise UserError(f"`output`: {output} holds an export with {name} {earlier.get(name)}, not {value}")
    return {"files": {}, "rows": {}, **record}


def _ways(config: ExportConfig, scheme: Scheme) -> dict[str, Any]:
    """How all splits of an output folder are written."""
    return {"to": config.to, "scheme": scheme.name, "images": config.images, "space": config.space}


def earlier_export(folder: Path) -> dict[str, Any]:
    """What an export noted of itself in its folder; {} if none did.

    Raises:
        UserError: The record is damaged.
    """
    if not (folder / RECORD).is_file():
        return {}
    record = read_record(folder / RECORD, "the record of an export", files=dict, rows=dict, image_folders=list)
    absolute_folders(record.get("image_folders", ()), folder / RECORD)
    return record


def _is_cut_off(visible: list[str], config: ExportConfig) -> bool:
    """Whether the files look like those of this export, stopped before it was recorded."""
    return config.images == "copy" and set(visible) <= {"images", config.split}


def _with_split(config: ExportConfig, scheme: Scheme, record: dict[str, Any]) -> Exported:
    exported = Exported(scheme, config.images, record["files"], record["rows"])
    file = LAYOUTS[config.to].file(exported, config.split)
    return dataclasses.replace(exported, files={**exported.files, config.split: file})


def _image_folders(output: Path, roots: Sequence[Path]) -> list[str]:
    """The folders that rows of this split and of those before it name images in."""
    return sorted({*earlier_export(output).get("image_folders", ()), *(str(root.resolve()) for root in roots)})


def _write_companions(
    config: ExportConfig, layout: Layout, exported: Exported, rows: int, image_folders: Sequence[str]
) -> None:
    output = Path(config.output)
    whole = dataclasses.replace(exported, rows={**exported.rows, config.split: rows})
    for name, text in layout.companions(whole).items():
        write_atomically(output / name, text)
    exported.scheme.save(output)
    record = _ways(config, exported.scheme)
    record |= {"image_folders": list(image_folders)} if config.images == "absolute" else {}
    write_json(output / RECORD, {**record, "files": dict(whole.files), "rows": dict(whole.rows)})


def describe(config: ExportConfig, summary: Summary) -> str:
    """What was done, in a few lines."""
    lines = [f"{summary.examples:,} examples, {summary.rows:,} rows, {summary.images:,} images"]
    if summary.altered:
        lines.append(f"{summary.altered:,} examples have text that spelt a special token; a space breaks it now")
    if summary.bad:
        lines.append(f"{summary.bad:,} bad rows left out" + ("" if config.dry_run else ", listed in rejected.jsonl"))
    if config.dry_run:
        lines += ["a row:", json.dumps(summary.sample, indent=2, ensure_ascii=False), "nothing was written"]
    else:
        lines.append(f"written to {config.output}; its README.md has the command" if config.to else "")
    return "\n".join(line for line in lines if line)

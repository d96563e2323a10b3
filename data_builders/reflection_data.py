"""Reflection data on disk: training examples as Parquet, with a manifest that says where their images are."""

from __future__ import annotations

import dataclasses
import io
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from reflectune.core.durable import read_json, write_atomically, write_json
from reflectune.core.errors import UserError
from reflectune.core.types import Branch, FollowUp, Passage, PromptedBranch, PromptedExample, ReflectionExample
from reflectune.data_builders import dataset

MANIFEST = "reflection.json"

PASSAGE = pa.struct(
    [
        ("entry_id", pa.string()),
        ("section", pa.int32()),
        ("index", pa.int32()),
        ("title", pa.string()),
        ("lead", pa.string()),
        ("heading", pa.string()),
        ("text", pa.string()),
    ]
)
"""A `Passage` in Parquet."""
FOLLOW_UP = pa.struct([("question", pa.string()), ("answer", pa.string())])
"""A `FollowUp` in Parquet."""
LATER = frozenset({"follow_ups"})
"""Columns that came when there was data already: a file without them has none."""
_BRANCH = pa.struct([("passage", PASSAGE), ("relevant", pa.bool_()), ("answer", pa.string()), ("source", pa.string())])
SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("image", pa.string()),
        ("question", pa.string()),
        ("retrieve", pa.bool_()),
        ("answer", pa.string()),
        ("branches", pa.list_(_BRANCH)),
        ("style", pa.string()),
        ("source", pa.string()),
        ("follow_ups", pa.list_(FOLLOW_UP)),
    ]
)
"""Columns of a Parquet file of `ReflectionExample`s."""

_PROMPTED_BRANCH = pa.struct(
    [("prompt", pa.string()), ("documents", pa.list_(PASSAGE)), ("role", pa.string()), ("reply", pa.string())]
)
PROMPTED_SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("image", pa.string()),
        ("question", pa.string()),
        ("branches", pa.list_(_PROMPTED_BRANCH)),
        ("style", pa.string()),
        ("source", pa.string()),
    ]
)
"""Columns of a Parquet file of `PromptedExample`s."""


def write_examples(path: str | Path, examples: Sequence[ReflectionExample]) -> None:
    """Write examples of mR²AG-IT as one Parquet file, atomically."""
    _write(path, examples, SCHEMA)


def write_prompted(path: str | Path, examples: Sequence[PromptedExample]) -> None:
    """Write examples of MMKB-RAG as one Parquet file, atomically."""
    _write(path, examples, PROMPTED_SCHEMA)


def read_examples(path: str | Path) -> list[ReflectionExample]:
    """Read a Parquet file that `write_examples` wrote.

    Raises:
        UserError: The file is missing, is no Parquet file, or lacks a column.
    """
    return [example_from_row(row) for row in _read(path, SCHEMA, "build_mr2ag")]


def read_prompted(path: str | Path) -> list[PromptedExample]:
    """Read a Parquet file that `write_prompted` wrote.

    Raises:
        UserError: The file is missing, is no Parquet file, or lacks a column.
    """
    return [prompted_from_row(row) for row in _read(path, PROMPTED_SCHEMA, "derive_labels")]


def example_from_row(row: dict[str, Any]) -> ReflectionExample:
    """An example from plain values, as `dataclasses.asdict` made them."""
    branches = tuple(Branch(**{**branch, "passage": Passage(**branch["passage"])}) for branch in row["branches"])
    follow_ups = tuple(FollowUp(**later) for later in row.get("follow_ups") or ())
    return ReflectionExample(**{**row, "branches": branches, "follow_ups": follow_ups})


def prompted_from_row(row: dict[str, Any]) -> PromptedExample:
    """A prompted example from plain values, as `dataclasses.asdict` made them."""
    branches = tuple(
        PromptedBranch(**{**branch, "documents": tuple(Passage(**own) for own in branch["documents"])})
        for branch in row["branches"]
    )
    return PromptedExample(**{**row, "branches": branches})


def _write(path: str | Path, examples: Sequence[ReflectionExample | PromptedExample], schema: pa.Schema) -> None:
    table = pa.Table.from_pylist([dataclasses.asdict(example) for example in examples], schema=schema)
    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression="zstd")
    write_atomically(path, buffer.getvalue())


def _read(path: str | Path, schema: pa.Schema, builder: str) -> list[dict[str, Any]]:
    if not Path(path).is_file():
        raise UserError(f"reflection data not found: {path}; build it with reflectune.data_builders.{builder}")
    try:
        table = pq.read_table(path)
    except pa.ArrowException as error:
        raise UserError(f"{path} is no readable Parquet file: {error}; build it again") from error
    missing = missing_columns(schema, table.column_names)
    if missing:
        raise UserError(
            f"{path} lacks the column `{'`, `'.join(missing)}`; found {', '.join(table.column_names)}. Build it again "
            f"with reflectune.data_builders.{builder}"
        )
    rows: list[dict[str, Any]] = table.select([name for name in schema.names if name in table.column_names]).to_pylist()
    return rows


def missing_columns(schema: pa.Schema, held: Sequence[str]) -> list[str]:
    """The columns that a file of reflection data needs and doesn't hold."""
    return [name for name in schema.names if name not in held and name not in LATER]


@dataclasses.dataclass(frozen=True)
class Manifest:
    """What a folder of reflection data says of itself.

    Attributes:
        scheme: The scheme that the examples are meant for.
        image_root: The folder that the examples' image paths are relative to.
        fingerprints: Of each split: a hash of everything that determined it.
        image_folders: Further folders, absolute, that the examples' image paths lead into.
    """

    scheme: str
    image_root: Path
    fingerprints: dict[str, str]
    image_folders: tuple[str, ...] = ()


def write_manifest(folder: str | Path, manifest: Manifest) -> None:
    """Write the manifest of a folder of reflection data; `image_root` is stored relative to the folder."""
    root = Path(os.path.relpath(manifest.image_root.resolve(), Path(folder).resolve())).as_posix()
    write_json(Path(folder, MANIFEST), {**dataclasses.asdict(manifest), "image_root": root})


def read_manifest(folder: str | Path) -> Manifest:
    """Read the manifest of a folder of reflection data.

    Raises:
        UserError: It is missing or is not JSON.
    """
    values = read_json(Path(folder, MANIFEST), "the manifest of the reflection data")
    root, folders = Path(folder, values["image_root"]).resolve(), tuple(values.get("image_folders", ()))
    return Manifest(values["scheme"], root, values["fingerprints"], folders)


def earlier_manifest(folder: Path, scheme: str, image_root: Path) -> Manifest:
    """The manifest of a folder that a split is to be added to; an empty one if nothing is there.

    Args:
        folder: Where to.
        scheme: The split's scheme.
        image_root: What its image paths are relative to.

    Raises:
        UserError: The folder holds data of another scheme or with other images.
    """
    if not (folder / MANIFEST).is_file():
        return Manifest(scheme, image_root, {})
    manifest = read_manifest(folder)
    if manifest.scheme != scheme or manifest.image_root != image_root.resolve():
        raise UserError(f"`output`: {folder} holds other reflection data ({manifest.scheme}); choose another folder")
    return manifest


def image_roots(folder: str | Path, manifest: Manifest) -> tuple[Path, ...]:
    """The folders that the image paths of reflection data may lead into; relative paths start at the first.

    They are those of the data set that it was built from, the data's own folder (a black image lies there), and those
    that the manifest names.

    Args:
        folder: Of the reflection data.
        manifest: Its manifest.
    """
    return (*dataset.image_roots(manifest.image_root), Path(folder), *map(Path, manifest.image_folders))

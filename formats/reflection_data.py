"""Reflection data on disk: training examples as Parquet, with a manifest that says where their images are."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import pyarrow as pa

from reflectune.core.durable import read_record, write_json
from reflectune.core.errors import UserError
from reflectune.core.parquet import open_parquet, stream_rows, write_parquet
from reflectune.core.paths import absolute_folders
from reflectune.core.resumable import Logs, Row, run_chunks
from reflectune.core.rows import from_row, schema_of, to_row
from reflectune.formats import dataset
from reflectune.models.schemes.examples import TrainingExample

MANIFEST = "reflection.json"

LATER = frozenset({"follow_ups", "template", "documents", "system", "branch_documents"})
"""Columns that older files lack; their examples have the field's default."""

Example = TypeVar("Example", bound=TrainingExample)
Item = TypeVar("Item")
Problem = Callable[[Example], str]


def write_examples(path: str | Path, examples: Sequence[TrainingExample], example_type: type | None = None) -> None:
    """Write training examples as one Parquet file, atomically.

    Args:
        path: Where to.
        examples: All of one scheme's type.
        example_type: That type; needed if there is no example to tell it by.
    """
    schema = schema_of(example_type or type(examples[0]))
    write_parquet(Path(path), pa.Table.from_pylist([to_row(example) for example in examples], schema=schema))


def read_examples(
    path: str | Path, example_type: type[Example], problem: Problem[Example] | None = None
) -> list[Example]:
    """Read a Parquet file that `write_examples` wrote.

    Args:
        path: The file.
        example_type: The type of its scheme's examples.
        problem: `Scheme.problem`, which says what is wrong with an example; None takes every row of the right types.

    Raises:
        UserError: The file is missing, is no Parquet file, lacks a column, or has bad rows: of other types, without id,
            question or image, with an id that came before, or such as the scheme doesn't have.
    """
    return list(stream_examples(path, example_type, problem))


def stream_examples(
    path: str | Path,
    example_type: type[Example],
    problem: Problem[Example] | None = None,
    reject: Callable[[str, str], None] | None = None,
) -> Iterator[Example]:
    """The examples of a Parquet file, in order, some hundreds of them in memory at a time.

    Args:
        path: The file.
        example_type: The type of its scheme's examples.
        problem: See `read_examples`.
        reject: Takes the id of a bad row, and what is wrong with it; without it they are an error, at the end of the
            file.

    Raises:
        UserError: As `read_examples`.
    """
    if not Path(path).is_file():
        raise UserError(f"reflection data not found: {path}; build it with a builder of reflectune.data_builders")
    problems: list[str] = []
    seen: set[str] = set()

    def refuse(row_id: str, problem: str) -> None:
        problems.append(f"{row_id}: {problem}")

    with open_parquet(Path(path), "build it again") as file:
        columns = _columns(path, example_type, file.schema_arrow.names)
        for row in stream_rows(file, columns):
            try:
                example = from_row(example_type, {name: value for name, value in row.items() if value is not None})
            except ValueError as error:
                (reject or refuse)(str(row.get("id")), str(error))
                continue
            if wrong := _problem(example, seen) or (problem(example) if problem else ""):
                (reject or refuse)(example.id, wrong)
            else:
                yield example
            seen.add(example.id)
    if problems:
        raise UserError(bad_rows(path, problems))


def stream_ids(folder: str | Path, split: str) -> Iterator[str]:
    """The ids of a split's examples in a folder of reflection data, of whatever scheme.

    Raises:
        UserError: The folder has no such split, or its file can't be read.
    """
    path = Path(folder, f"{split}.parquet")
    if split not in (splits := read_manifest(folder).fingerprints):
        raise UserError(f"{folder} has no data of the split {split}, but of {', '.join(sorted(splits)) or 'none'}")
    with open_parquet(path, "build it again") as file:
        if "id" not in file.schema_arrow.names:
            raise UserError(f"{path} lacks the column `id`; build it again with a builder of reflectune.data_builders")
        for row in stream_rows(file, pa.schema([pa.field("id", pa.string())])):
            yield str(row["id"])


def _problem(example: TrainingExample, seen: Collection[str]) -> str:
    """What is wrong with an example whatever its scheme; "" if nothing is."""
    if not example.id.strip():
        return "the id is empty"
    if example.id in seen:
        return "the id came before; ids must be unique"
    if not example.question.strip():
        return "the question is empty"
    if not example.image.strip():
        return "the question has no image"
    return ""


def bad_rows(path: str | Path, problems: Sequence[str]) -> str:
    """What is wrong with the rows of a file, the first ten of them."""
    more = f"\n  and {len(problems) - 10} more" if len(problems) > 10 else ""
    shown = "\n  ".join(problems[:10])
    return f"{path} has {len(problems)} bad rows; mend or rebuild them:\n  {shown}{more}"


def _columns(path: str | Path, example_type: type, held: Sequence[str]) -> pa.Schema:
    """The columns to read."""
    schema = schema_of(example_type)
    if missing := [name for name in schema.names if name not in held and name not in LATER]:
        raise UserError(
            f"{path} lacks the column `{'`, `'.join(missing)}`; found {', '.join(held)}. Build it again with a builder "
            "of reflectune.data_builders"
        )
    return pa.schema([field for field in schema if field.name in held])


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
    values = read_record(
        Path(folder, MANIFEST),
        "the manifest of the reflection data",
        scheme=str,
        image_root=str,
        fingerprints=dict,
        image_folders=list,
    )
    if missing := {"scheme", "image_root", "fingerprints"} - values.keys():
        raise UserError(f"{Path(folder, MANIFEST)} lacks `{'`, `'.join(sorted(missing))}`; build the data again")
    folders = absolute_folders(values.get("image_folders", ()), Path(folder, MANIFEST))
    return Manifest(values["scheme"], Path(folder, values["image_root"]).resolve(), values["fingerprints"], folders)


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


def build_split(
    folder: Path,
    split: str,
    manifest: Manifest,
    key: str,
    example_type: type[Example],
    items: Sequence[Item],
    size: int,
    make: Callable[[Sequence[Item]], Sequence[Example]],
) -> list[Example] | None:
    """Make a split's examples chunk by chunk, and write them with their part of the manifest.

    A build that was cut off goes on; one that is finished is said to be.

    Args:
        folder: Where to.
        split: Its name.
        manifest: Scheme, image root and image folders; the fingerprints of other splits are kept as they are.
        key: Hash of everything that determines the examples.
        example_type: Their type.
        items: What they are made of.
        size: Items that are made together, and logged together.
        make: Makes the examples of some items.

    Returns:
        The examples; None if the split was built before.

    Raises:
        UserError: The folder holds data of another scheme or with other images.
    """
    target = folder / f"{split}.parquet"
    before = earlier_manifest(folder, manifest.scheme, manifest.image_root).fingerprints
    if before.get(split) == key and target.is_file():
        print(f"nothing to do: {target} is built")
        return None
    logs = Logs(folder, f".{split}.{key}.jsonl", key)

    def make_row(chunk: Sequence[Item]) -> Row:
        return {"examples": [to_row(example) for example in make(chunk)]}

    rows = run_chunks(items, size, make_row, logs)
    examples = [from_row(example_type, row) for chunk in rows for row in chunk["examples"]]
    write_examples(target, examples, example_type)
    write_manifest(folder, dataclasses.replace(manifest, fingerprints={**before, split: key}))
    logs.remove()
    return examples


def image_roots(folder: str | Path, manifest: Manifest) -> tuple[Path, ...]:
    """The folders that the image paths of reflection data may lead into; relative paths start at the first.

    They are those of the data set that it was built from, the data's own folder (a black image lies there), and those
    that the manifest names.

    Args:
        folder: Of the reflection data.
        manifest: Its manifest.
    """
    return (*dataset.image_roots(manifest.image_root), Path(folder), *map(Path, manifest.image_folders))

"""Reflection data on disk: training examples of any scheme as Parquet, and a manifest with the root of their images."""

from __future__ import annotations

import dataclasses
import operator
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa

from reflectune.core.durable import read_json, read_record, write_json
from reflectune.core.errors import UserError
from reflectune.core.launching import ALONE, Processes
from reflectune.core.parquet import open_parquet, stream_rows, write_parquet
from reflectune.core.resumable import Logs, Row, run_chunks
from reflectune.core.rows import from_row, schema_of, to_row
from reflectune.core.types import StoredExample
from reflectune.formats import dataset

MANIFEST, STATISTICS = "reflection.json", "statistics.json"


Example = TypeVar("Example", bound=StoredExample)
Item = TypeVar("Item")
Problem = Callable[[Example], str]
"""A scheme's check of an example; "" if it is valid."""


def write_examples(path: str | Path, examples: Sequence[StoredExample], example_type: type | None = None) -> None:
    """Write a split's training examples as one Parquet file, atomically.

    The folder's manifest first loses the split's fingerprint: until it is written again the split counts as unbuilt.

    Args:
        path: File to write, `{split}.parquet`.
        examples: Examples of one type.
        example_type: Their type; needed if there are none.
    """
    if Path(path).with_name(MANIFEST).is_file():
        manifest = read_manifest(Path(path).parent)
        others = {split: key for split, key in manifest.fingerprints.items() if split != Path(path).stem}
        if others != manifest.fingerprints:
            print(f"replaces {path}, which was built before")
        write_manifest(Path(path).parent, dataclasses.replace(manifest, fingerprints=others))
    schema = schema_of(example_type or type(examples[0]))
    write_parquet(Path(path), pa.Table.from_pylist([to_row(example) for example in examples], schema=schema))


def read_examples(
    path: str | Path, example_type: type[Example], problem: Problem[Example] | None = None
) -> list[Example]:
    """Read a Parquet file that `write_examples` wrote.

    Args:
        path: The file.
        example_type: The type of its scheme's examples.
        problem: `Scheme.problem`; None accepts every row of the right types.

    Raises:
        UserError: The file is missing, is not a Parquet file, lacks a column, or has bad rows: of other types, without
            id, question or image, with a repeated id, or refused by `problem`.
    """
    return list(stream_examples(path, example_type, problem))


def stream_examples(
    path: str | Path,
    example_type: type[Example],
    problem: Problem[Example] | None = None,
    reject: Callable[[str, str], None] | None = None,
) -> Iterator[Example]:
    """Yield the examples of a Parquet file, in order; memory holds some hundreds of them.

    Args:
        path: The file.
        example_type: The type of its scheme's examples.
        problem: See `read_examples`.
        reject: Called with the id and the problem of each bad row; None raises an error for them at the file's end.

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
        for row in stream_rows(file, schema_of(example_type)):
            try:
                example = _example(example_type, row)
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


class StoredExamples(Sequence[Example]):
    """Examples of a Parquet file, created at each access.

    Their rows are memory-mapped from a copy in the cache of `datasets`, so all processes of a machine share them.

    Args:
        path: A file whose rows were checked.
        example_type: The type of its scheme's examples.
    """

    def __init__(self, path: str | Path, example_type: type[Example]) -> None:
        import datasets  # takes a second

        shown = not datasets.are_progress_bars_disabled()
        datasets.disable_progress_bars()
        try:
            table = datasets.Dataset.from_parquet(str(path), columns=schema_of(example_type).names)
        finally:
            if shown:
                datasets.enable_progress_bars()
        self._rows = table.with_format("arrow")
        self._type = example_type

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: Any) -> Any:
        """Return an example; a slice is not supported."""
        return _example(self._type, self._rows[operator.index(index)].to_pylist()[0])

    def __iter__(self) -> Iterator[Example]:
        for batch in self._rows.iter(256):
            for row in batch.to_pylist():
                yield _example(self._type, row)


def _example(example_type: type[Example], row: Mapping[str, Any]) -> Example:
    return from_row(example_type, {name: value for name, value in row.items() if value is not None})


def stream_ids(folder: str | Path, split: str) -> Iterator[str]:
    """Yield the ids of a split's examples in a folder of reflection data of any scheme.

    Raises:
        UserError: The folder lacks this split, or its file can't be read.
    """
    path = Path(folder, f"{split}.parquet")
    if split not in (splits := read_manifest(folder).fingerprints):
        raise UserError(f"{folder} has no data of the split {split}; its splits: {', '.join(sorted(splits)) or 'none'}")
    with open_parquet(path, "build it again") as file:
        for row in stream_rows(file, pa.schema([pa.field("id", pa.string())])):
            yield str(row["id"])


def _problem(example: StoredExample, seen: Collection[str]) -> str:
    """Return the problem of an example of any scheme; "" if it has none."""
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
    """Return an error text that lists the first ten problems of a file."""
    more = f"\n  and {len(problems) - 10} more" if len(problems) > 10 else ""
    first = "\n  ".join(problems[:10])
    return f"{path} has {len(problems)} bad rows; fix or rebuild them:\n  {first}{more}"


@dataclasses.dataclass(frozen=True)
class Manifest:
    """The manifest of a folder of reflection data.

    Attributes:
        scheme: The scheme of the examples.
        image_root: The folder that the examples' image paths are relative to.
        fingerprints: A hash of everything that determines the examples, by split.
        image_folders: Absolute paths of further folders that hold images.
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
        UserError: It is missing, is not JSON, lacks a key, or has an image folder that is not an absolute path.
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
    image_folders = values.get("image_folders", ())
    for path in image_folders:
        if not isinstance(path, str) or not os.path.isabs(path):
            raise UserError(
                f"{Path(folder, MANIFEST)}: {path!r} of `image_folders` is not an absolute path; build it again"
            )
    image_root = Path(folder, values["image_root"]).resolve()
    return Manifest(values["scheme"], image_root, values["fingerprints"], tuple(image_folders))


def earlier_manifest(folder: Path, scheme: str, image_root: Path) -> Manifest:
    """Return the manifest of a folder before a split is added; an empty one if the folder has none.

    Args:
        folder: The folder.
        scheme: The split's scheme.
        image_root: The folder that its image paths are relative to.

    Raises:
        UserError: The folder holds data of a different scheme or with a different image root.
    """
    if not (folder / MANIFEST).is_file():
        return Manifest(scheme, image_root, {})
    manifest = read_manifest(folder)
    if (manifest.scheme, manifest.image_root) != (scheme, image_root.resolve()):
        found = f"{manifest.scheme} with the images of {manifest.image_root}"
        expected = f"{scheme} with the images of {image_root.resolve()}"
        raise UserError(
            f"`output`: {folder} holds reflection data of {found}, not of {expected}; choose another folder"
        )
    return manifest


def is_built(folder: Path, split: str, manifest: Manifest, key: str) -> bool:
    """Return True if a folder has a split that was built with this key; UserError if it holds other data."""
    earlier = earlier_manifest(folder, manifest.scheme, manifest.image_root)
    return earlier.fingerprints.get(split) == key and (folder / f"{split}.parquet").is_file()


def add_split(folder: Path, split: str, manifest: Manifest, key: str) -> None:
    """Add a split to a folder's manifest. It is read again, since another command may have added a split."""
    earlier = earlier_manifest(folder, manifest.scheme, manifest.image_root)
    folders = tuple(sorted({*earlier.image_folders, *manifest.image_folders}))
    fingerprints = {**earlier.fingerprints, split: key}
    write_manifest(folder, dataclasses.replace(manifest, image_folders=folders, fingerprints=fingerprints))


def read_statistics(folder: Path) -> dict[str, Any]:
    """Return the statistics of a folder of reflection data, by split; {} if it has none."""
    return read_json(folder / STATISTICS, "statistics") if (folder / STATISTICS).is_file() else {}


def add_statistics(folder: Path, split: str, numbers: Mapping[str, Any]) -> None:
    """Write a split's statistics next to those of other splits."""
    write_json(folder / STATISTICS, {**read_statistics(folder), split: numbers})


def build_split(
    folder: Path,
    split: str,
    manifest: Manifest,
    key: str,
    example_type: type[Example],
    items: Sequence[Item],
    size: int,
    make: Callable[[Sequence[Item]], Sequence[Example]],
    processes: Processes = ALONE,
) -> list[Example] | None:
    """Build a split's examples chunk by chunk, and write them with their part of the manifest.

    An interrupted build resumes. Processes share the chunks, and the first one writes.

    Args:
        folder: Folder to write to.
        split: Name of the split.
        manifest: Scheme, image root and image folders; fingerprints and image folders of other splits stay.
        key: Hash of everything that determines the examples.
        example_type: Type of the examples.
        items: Inputs of `make`.
        size: Items per chunk.
        make: Builds the examples of a chunk of items.
        processes: Processes of the launch.

    Returns:
        The examples; None if the split is built already, and in all processes but the first.

    Raises:
        UserError: The folder holds data of a different scheme or with a different image root.
    """
    target = folder / f"{split}.parquet"
    if is_built(folder, split, manifest, key):
        if processes.index == 0:
            print(f"nothing to do: {target} is built")
        return None
    logs = Logs(folder, f".{split}.{key}.*.jsonl", key)

    def make_row(chunk: Sequence[Item]) -> Row:
        return {"examples": [to_row(example) for example in make(chunk)]}

    rows = run_chunks(items, size, make_row, logs, processes=processes)
    examples = [] if processes.index else [from_row(example_type, row) for chunk in rows for row in chunk["examples"]]
    processes.wait()  # the first process deletes the logs, which the others still scan
    if processes.index:
        return None
    write_examples(target, examples, example_type)
    add_split(folder, split, manifest, key)
    Logs(folder, f".{split}.{'?' * len(key)}.*.jsonl", key).remove()  # those of interrupted builds too
    return examples


def image_roots(folder: str | Path, manifest: Manifest) -> tuple[Path, ...]:
    """Return the folders that may hold the images of reflection data; relative paths start at the first.

    They are those of the source data set, the data's own folder (it may hold a black image), and the manifest's.
    """
    return (*dataset.image_roots(manifest.image_root), Path(folder), *map(Path, manifest.image_folders))

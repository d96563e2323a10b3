"""A knowledge base on disk: entries in sharded Parquet, read as a stream or one by one, never whole."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from reflectune.core.durable import read_record, write_json
from reflectune.core.errors import UserError
from reflectune.core.parquet import open_parquet, stream_rows, write_parquet
from reflectune.core.paths import listed_file
from reflectune.core.types import Entry, Section

MANIFEST = "kb.json"

SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("title", pa.string()),
        ("url", pa.string()),
        ("summary", pa.string()),
        ("images", pa.list_(pa.string())),
        ("sections", pa.list_(pa.struct([("title", pa.string()), ("text", pa.string())]))),
    ]
)
"""Columns of a shard."""

_KEYS = {"name": str, "entries": int, "fingerprint": str, "image_root": str, "shards": list}
"""What the manifest must say."""
_ROW_GROUP = 128
_GROUPS_KEPT = 64


def write_knowledge_base(
    folder: str | Path, entries: Iterable[Entry], *, name: str, image_root: str = "..", shard_size: int = 10_000
) -> KnowledgeBase:
    """Write entries as a knowledge base; memory holds one shard and the ids.

    The manifest is written last: a folder without it is not a knowledge base.

    Args:
        folder: Where to. A knowledge base that is there is replaced.
        entries: In the order that ties in retrieval are broken by.
        name: Of the knowledge base.
        image_root: The folder that `Entry.images` are relative to, relative to `folder`.
        shard_size: Entries in a file.

    Raises:
        UserError: An entry has no id, or an id comes twice.
    """
    folder = Path(folder)
    clear_knowledge_base(folder)
    seen = set[str]()
    shards: list[dict[str, Any]] = []
    digests: list[bytes] = []
    remaining = iter(entries)
    while shard := list(islice(remaining, shard_size)):
        for entry in shard:
            _check_id(entry, seen)
        file = shard_name(len(shards))
        digests += write_shard(folder / file, shard)
        shards.append({"file": file, "entries": len(shard)})
    return finish_knowledge_base(folder, shards, digests, name=name, image_root=image_root)


def clear_knowledge_base(folder: Path) -> None:
    """Make the folder, and take what an earlier knowledge base left in it; the manifest goes first."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MANIFEST).unlink(missing_ok=True)
    for stale in folder.glob("part-*.parquet"):
        stale.unlink()


def shard_name(number: int) -> str:
    """The file name of a shard."""
    return f"part-{number:05d}.parquet"


def write_shard(path: Path, entries: Sequence[Entry]) -> list[bytes]:
    """Write one shard, atomically.

    Returns:
        The digest of each entry, 16 bytes, in order: what `finish_knowledge_base` makes the fingerprint of.
    """
    rows = [_row(entry) for entry in entries]
    write_parquet(path, pa.Table.from_pylist(rows, schema=SCHEMA), _ROW_GROUP)
    return [_digest(row) for row in rows]


def drop_entries(path: Path, positions: Sequence[int]) -> None:
    """Take entries out of a shard, atomically; a shard that is left empty is deleted."""
    with _opened(path) as file:
        table = file.read()
    gone = set(positions)
    kept = table.filter(pa.array([row not in gone for row in range(table.num_rows)], pa.bool_()))
    if kept.num_rows:
        write_parquet(path, kept, _ROW_GROUP)
    else:
        path.unlink()


def finish_knowledge_base(
    folder: Path, shards: Sequence[dict[str, Any]], digests: Iterable[bytes], *, name: str, image_root: str = ".."
) -> KnowledgeBase:
    """Write the manifest of a folder whose shards are written.

    Args:
        folder: The knowledge base's folder.
        shards: Of each shard: {"file": its name, "entries": how many}, in order.
        digests: What `write_shard` returned for each, one after the other (pieces may be joined).
        name: Of the knowledge base.
        image_root: The folder that `Entry.images` are relative to, absolute or relative to `folder`.
    """
    manifest = {
        "name": name,
        "entries": sum(shard["entries"] for shard in shards),
        "fingerprint": _fingerprint(digests),
        "image_root": image_root,
        "shards": list(shards),
    }
    write_json(folder / MANIFEST, manifest)
    return KnowledgeBase(folder)


class KnowledgeBase:
    """The entries of one folder.

    Iterating streams them in order; `get` reads the few rows around one entry and keeps recently read ones.

    Args:
        folder: What `write_knowledge_base` wrote.

    Raises:
        UserError: The folder is no knowledge base.

    Example:
        >>> knowledge = KnowledgeBase("world/knowledge")
        >>> knowledge.get("Q42").title
        'Barn owl'
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.manifest = read_record(self.folder / MANIFEST, "the knowledge base's manifest", **_KEYS)
        missing = [key for key in _KEYS if key not in self.manifest]
        shards = self.manifest.get("shards", [])
        if not all(isinstance(each, dict) and {"file", "entries"} <= each.keys() for each in shards):
            raise UserError(f"{self.folder / MANIFEST}: a shard lacks its file or its entries; write it again")
        if missing:
            raise UserError(f"{self.folder / MANIFEST} lacks `{'`, `'.join(missing)}`; write the knowledge base again")
        counts = [shard["entries"] for shard in shards]
        if not all(type(count) is int and count >= 0 for count in counts) or sum(counts) != self.manifest["entries"]:
            raise UserError(
                f"{self.folder / MANIFEST}: `entries` is {self.manifest['entries']}, its shards hold {counts[:3]} …; "
                "write the knowledge base again"
            )
        self._group = functools.lru_cache(maxsize=_GROUPS_KEPT)(self._read_group)

    @property
    def name(self) -> str:
        """The name it was given."""
        return str(self.manifest["name"])

    @property
    def fingerprint(self) -> str:
        """A hash of every entry's text and image paths, in order, however they are cut into shards.

        The images themselves are not part of it.
        """
        return str(self.manifest["fingerprint"])

    @property
    def image_root(self) -> Path:
        """The folder that relative image paths start from, absolute: so is every path of an image."""
        return (self.folder / self.manifest["image_root"]).absolute()

    def fingerprint_of(self, entries: int) -> str:
        """The fingerprint of a knowledge base of only the first so many entries; it reads them."""
        return _fingerprint(_digest(_row(entry)) for entry in islice(self, entries))

    def __len__(self) -> int:
        return int(self.manifest["entries"])

    def __iter__(self) -> Iterator[Entry]:
        for shard, record in zip(self._shards, self.manifest["shards"], strict=True):
            with _opened(shard) as file:
                if file.metadata.num_rows != record["entries"]:
                    raise UserError(
                        f"{shard} holds {file.metadata.num_rows:,} entries, {MANIFEST} says {record['entries']}; "
                        "write the knowledge base again"
                    )
                yield from map(_entry, stream_rows(file, SCHEMA, _ROW_GROUP))

    def __contains__(self, entry_id: object) -> bool:
        return isinstance(entry_id, str) and self._directory.find(entry_id) is not None

    @property
    def ids(self) -> Sequence[str]:
        """Every entry's id, in order."""
        return tuple(self._directory.ids.to_pylist())

    def id_at(self, position: int) -> str:
        """The id of the entry at a position, from 0."""
        return str(self._directory.ids[position].as_py())

    def image_counts(self) -> Iterator[int]:
        """How many images each entry has, in order, without reading its text; a list that is damaged is empty."""
        for shard in self._shards:
            with _opened(shard) as file:
                for group in range(file.num_row_groups):
                    images = file.read_row_group(group, columns=["images"]).column("images").to_pylist()
                    yield from (len(each or ()) for each in images)

    def get(self, entry_id: str) -> Entry:
        """One entry.

        Raises:
            UserError: It is not there.
        """
        position = self._directory.find(entry_id)
        if position is None:
            raise UserError(
                f"entry {entry_id} is not in the knowledge base {self.name} ({self.folder}, {len(self):,} entries); "
                "use the knowledge base that the questions, the index or the data were made with"
            )
        shard, group, row = self._directory.place(position)
        return _entry(self._group(shard, group).slice(row, 1).to_pylist()[0])

    def place(self, position: int) -> tuple[Path, int]:
        """The shard of the entry at a position (from 0), in the knowledge base's order, and its record (from 1)."""
        for shard in self.manifest["shards"]:
            if position < shard["entries"]:
                return listed_file(self.folder, shard["file"], MANIFEST), position + 1
            position -= shard["entries"]
        raise IndexError(f"{self.folder} has {len(self):,} entries")

    def image_path(self, entry: Entry, position: int = 0) -> Path:
        """Where one of an entry's images is; the first is the infobox image.

        Raises:
            UserError: The entry has no such image.
        """
        if position >= len(entry.images):
            raise UserError(
                f"entry {entry.id} of {self.folder} has {len(entry.images)} images, asked for {position + 1}"
            )
        return self.image_root / entry.images[position]

    def image_paths(self, entry: Entry) -> list[Path]:
        """Where an entry's images are, in order."""
        return [self.image_path(entry, position) for position in range(len(entry.images))]

    @property
    def _shards(self) -> list[Path]:
        return [listed_file(self.folder, shard["file"], MANIFEST) for shard in self.manifest["shards"]]

    @functools.cached_property
    def _directory(self) -> _Directory:
        """Every entry's id and place."""
        names, groups = [], []
        for number, shard in enumerate(self._shards):
            with _opened(shard) as file:
                for group in range(file.num_row_groups):
                    names.append(file.read_row_group(group, columns=["id"]).column("id"))
                    groups.append((number, group))
        chunks = [chunk.cast(pa.large_string()) for column in names for chunk in column.chunks]
        ids = pa.chunked_array(chunks, pa.large_string()).combine_chunks()
        directory = _Directory(ids, groups, [len(column) for column in names])
        if directory.different != len(self):
            raise UserError(
                f"{self.folder} holds {directory.different:,} entries, its manifest says {len(self):,}; write it again"
            )
        return directory

    def _read_group(self, shard: int, group: int) -> pa.Table:
        with _opened(self._shards[shard]) as file:
            return file.read_row_group(group, columns=SCHEMA.names)


class _Directory:
    """Where each entry lies, in some 30 bytes an entry: 6 M of them must fit beside other things in every process.

    Args:
        ids: Of all entries, in order.
        groups: Shard and row group of each group of rows.
        sizes: Rows of each.
    """

    def __init__(self, ids: pa.LargeStringArray, groups: Sequence[tuple[int, int]], sizes: Sequence[int]) -> None:
        self.ids, self._groups = ids, groups
        self._starts = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])
        hashes = np.fromiter((hash(name.as_py()) for name in ids), dtype=np.int64, count=len(ids))
        self._order = np.argsort(hashes, kind="stable").astype(np.int32)
        self._hashes = hashes[self._order]

    @property
    def different(self) -> int:
        """How many different ids there are."""
        same = np.flatnonzero(self._hashes[1:] == self._hashes[:-1])
        pairs = ((self.ids[int(self._order[place])], self.ids[int(self._order[place + 1])]) for place in same)
        return len(self.ids) - sum(one == other for one, other in pairs)

    def find(self, entry_id: str) -> int | None:
        """The position of an entry, or None."""
        wanted = hash(entry_id)
        first, last = np.searchsorted(self._hashes, wanted, "left"), np.searchsorted(self._hashes, wanted, "right")
        positions = (int(position) for position in self._order[first:last])
        return next((position for position in positions if self.ids[position].as_py() == entry_id), None)

    def place(self, position: int) -> tuple[int, int, int]:
        """Shard, row group and row of the entry at a position."""
        group = int(np.searchsorted(self._starts, position, "right")) - 1
        return (*self._groups[group], position - int(self._starts[group]))


def _digest(row: dict[str, Any]) -> bytes:
    """What an entry adds to the fingerprint, 16 bytes."""
    return hashlib.sha256(json.dumps(row, sort_keys=True).encode()).digest()[:16]


def _fingerprint(digests: Iterable[bytes]) -> str:
    digest = hashlib.sha256()
    for piece in digests:
        digest.update(piece)
    return digest.hexdigest()[:16]


def _check_id(entry: Entry, seen: set[str]) -> None:
    """Note an entry's id; refuse one that is empty or was there before."""
    if not entry.id:
        raise UserError(f"entry {len(seen)} of the knowledge base (title `{entry.title}`) has no id; give it one")
    if entry.id in seen:
        raise UserError(f"entry {entry.id} comes twice; ids must be unique within a knowledge base")
    seen.add(entry.id)


def _row(entry: Entry) -> dict[str, Any]:
    return {
        "id": entry.id,
        "title": entry.title,
        "url": entry.url,
        "summary": entry.summary,
        "images": list(entry.images),
        "sections": [{"title": section.title, "text": section.text} for section in entry.sections],
    }


@contextmanager
def _opened(path: Path) -> Iterator[pq.ParquetFile]:
    """A shard, checked for its columns and their types, within the block."""
    with open_parquet(path, "write or copy the knowledge base again") as file:
        missing = [name for name in SCHEMA.names if name not in file.schema_arrow.names]
        if missing:
            raise UserError(f"{path} lacks the column `{'`, `'.join(missing)}`; write the knowledge base again")
        for field in SCHEMA:
            if (stored := file.schema_arrow.field(field.name).type) != field.type:
                raise UserError(
                    f"{path}: the column `{field.name}` is {stored}, not {field.type}; write the knowledge base again"
                )
        yield file


def _entry(row: dict[str, Any]) -> Entry:
    if empty := [name for name in SCHEMA.names if row[name] is None or (name == "id" and not row[name])]:
        raise UserError(f"entry {row['id']} of the knowledge base has no {', '.join(empty)}; write it again")
    sections = tuple(Section(**section) for section in row["sections"])
    return Entry(**{**row, "images": tuple(row["images"]), "sections": sections})

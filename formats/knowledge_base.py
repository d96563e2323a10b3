"""A knowledge base on disk: entries in sharded Parquet, read as a stream or one by one, never as a whole."""

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
from reflectune.core.rows import from_row, schema_of, to_row
from reflectune.core.types import Entry

MANIFEST = "kb.json"

_KEYS = {"name": str, "entries": int, "fingerprint": str, "image_root": str, "shards": list}
"""Keys of the manifest."""
_ROW_GROUP = 64
"""Entries per row group, all read to get one of them. With fewer, reading the shard's footer would take longer."""
_CACHED_GROUPS = 128


def write_knowledge_base(
    folder: str | Path, entries: Iterable[Entry], *, name: str, image_root: str = "..", shard_size: int = 10_000
) -> KnowledgeBase:
    """Write entries as a knowledge base; memory holds one shard and the ids.

    The manifest is written last: a folder without it is not a knowledge base.

    Args:
        folder: Folder to write to. An existing knowledge base is replaced.
        entries: Entries, in the order that breaks ties in retrieval.
        name: Name of the knowledge base.
        image_root: The folder that `Entry.images` are relative to, relative to `folder`.
        shard_size: Entries per file.

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
    """Create the folder, or delete an earlier knowledge base in it, manifest first."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MANIFEST).unlink(missing_ok=True)
    for stale in folder.glob("part-*.parquet"):
        stale.unlink()


def shard_name(number: int) -> str:
    """Return the file name of a shard."""
    return f"part-{number:05d}.parquet"


def write_shard(path: Path, entries: Sequence[Entry]) -> list[bytes]:
    """Write one shard, atomically.

    Returns:
        The digest of each entry, 16 bytes, in order; `finish_knowledge_base` hashes them to the fingerprint.
    """
    rows = [to_row(entry) for entry in entries]
    write_parquet(path, pa.Table.from_pylist(rows, schema=schema_of(Entry)), _ROW_GROUP)
    return [_digest(row) for row in rows]


def drop_entries(path: Path, positions: Sequence[int]) -> None:
    """Drop entries from a shard, atomically; an empty shard is deleted."""
    with _opened(path) as file:
        table = file.read()
    dropped = set(positions)
    remaining = table.filter(pa.array([row not in dropped for row in range(table.num_rows)], pa.bool_()))
    if remaining.num_rows:
        write_parquet(path, remaining, _ROW_GROUP)
    else:
        path.unlink()


def finish_knowledge_base(
    folder: Path, shards: Sequence[dict[str, Any]], digests: Iterable[bytes], *, name: str, image_root: str = ".."
) -> KnowledgeBase:
    """Write the manifest of a folder whose shards are written.

    Args:
        folder: The knowledge base's folder.
        shards: {"file": name, "entries": number of entries} of each shard, in order.
        digests: Digests that `write_shard` returned, in order (pieces may be joined).
        name: Name of the knowledge base.
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
        folder: A folder that `write_knowledge_base` wrote.

    Raises:
        UserError: The folder is not a knowledge base.

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
        if not all(isinstance(shard, dict) and {"file", "entries"} <= shard.keys() for shard in shards):
            raise UserError(f"{self.folder / MANIFEST}: a shard lacks its file or its entries; write it again")
        if missing:
            raise UserError(f"{self.folder / MANIFEST} lacks `{'`, `'.join(missing)}`; write the knowledge base again")
        counts = [shard["entries"] for shard in shards]
        if not all(type(count) is int and count >= 0 for count in counts) or sum(counts) != self.manifest["entries"]:
            raise UserError(
                f"{self.folder / MANIFEST}: `entries` is {self.manifest['entries']}, its shards hold {counts[:3]} …; "
                "write the knowledge base again"
            )
        self._group = functools.lru_cache(maxsize=_CACHED_GROUPS)(self._read_group)

    @property
    def name(self) -> str:
        """Its name."""
        return str(self.manifest["name"])

    @property
    def fingerprint(self) -> str:
        """A hash of the text and image paths of all entries, in order, independent of the shards and of the pixels."""
        return str(self.manifest["fingerprint"])

    @property
    def image_root(self) -> Path:
        """The folder that relative image paths start at, as an absolute path."""
        return (self.folder / self.manifest["image_root"]).absolute()

    def fingerprint_of(self, entries: int) -> str:
        """Compute the fingerprint of a knowledge base of only the first `entries` entries."""
        return _fingerprint(_digest(to_row(entry)) for entry in islice(self, entries))

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
                yield from map(_entry, stream_rows(file, schema_of(Entry), _ROW_GROUP))

    def __contains__(self, entry_id: object) -> bool:
        return isinstance(entry_id, str) and self._directory.find(entry_id) is not None

    @property
    def ids(self) -> Sequence[str]:
        """The ids of all entries, in order."""
        return tuple(self._directory.ids.to_pylist())

    def id_at(self, position: int) -> str:
        """Return the id of the entry at a position, from 0."""
        return str(self._directory.ids[position].as_py())

    def image_counts(self) -> Iterator[int]:
        """Yield the number of images of each entry, in order, without reading its text; a null list counts as empty."""
        for shard in self._shards:
            with _opened(shard) as file:
                yield from (len(paths or ()) for paths in file.read(columns=["images"]).column("images").to_pylist())

    def get(self, entry_id: str) -> Entry:
        """Read one entry.

        Raises:
            UserError: The knowledge base has no entry of this id.
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
        """Return the shard of the entry at a position (from 0), and its row number in it (from 1)."""
        for shard in self.manifest["shards"]:
            if position < shard["entries"]:
                return listed_file(self.folder, shard["file"], MANIFEST), position + 1
            position -= shard["entries"]
        raise IndexError(f"{self.folder} has {len(self):,} entries")

    def image_path(self, entry: Entry, position: int = 0) -> Path:
        """Return the path of one of an entry's images; the first is the infobox image.

        Raises:
            UserError: The entry lacks this image.
        """
        if position >= len(entry.images):
            raise UserError(
                f"entry {entry.id} of {self.folder} has {len(entry.images)} images, asked for {position + 1}"
            )
        return self.image_root / entry.images[position]

    def image_paths(self, entry: Entry) -> list[Path]:
        """Return the paths of an entry's images, in order."""
        return [self.image_path(entry, position) for position in range(len(entry.images))]

    @functools.cached_property
    def _shards(self) -> list[Path]:
        return [listed_file(self.folder, shard["file"], MANIFEST) for shard in self.manifest["shards"]]

    @functools.cached_property
    def _directory(self) -> _Directory:
        """The id and the place of every entry."""
        chunks, groups, sizes = [], [], []
        for number, shard in enumerate(self._shards):
            with _opened(shard) as file:
                chunks += file.read(columns=["id"]).column("id").cast(pa.large_string()).chunks
                groups += [(number, group) for group in range(file.num_row_groups)]
                sizes += [file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)]
        directory = _Directory(pa.chunked_array(chunks, pa.large_string()).combine_chunks(), groups, sizes)
        if directory.distinct != len(self):
            raise UserError(
                f"{self.folder} holds {directory.distinct:,} entries, its manifest says {len(self):,}; write it again"
            )
        return directory

    def _read_group(self, shard: int, group: int) -> pa.Table:
        with _opened(self._shards[shard]) as file:
            return file.read_row_group(group, columns=schema_of(Entry).names)


class _Directory:
    """Maps entry ids to positions, in about 30 bytes an entry, since every process holds those of 6 M entries.

    Args:
        ids: Ids of all entries, in order.
        groups: Shard and number of each row group.
        sizes: Number of rows of each row group.
    """

    def __init__(self, ids: pa.LargeStringArray, groups: Sequence[tuple[int, int]], sizes: Sequence[int]) -> None:
        self.ids, self._groups = ids, groups
        self._starts = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])
        hashes = np.fromiter((hash(name.as_py()) for name in ids), dtype=np.int64, count=len(ids))
        self._order = np.argsort(hashes, kind="stable").astype(np.int32)
        self._hashes = hashes[self._order]

    @property
    def distinct(self) -> int:
        """Number of distinct ids."""
        same = np.flatnonzero(self._hashes[1:] == self._hashes[:-1])
        pairs = ((self.ids[int(self._order[rank])], self.ids[int(self._order[rank + 1])]) for rank in same)
        return len(self.ids) - sum(one == other for one, other in pairs)

    def find(self, entry_id: str) -> int | None:
        """Return the position of an entry, or None."""
        key = hash(entry_id)
        first, last = np.searchsorted(self._hashes, key, "left"), np.searchsorted(self._hashes, key, "right")
        positions = (int(position) for position in self._order[first:last])
        return next((position for position in positions if self.ids[position].as_py() == entry_id), None)

    def place(self, position: int) -> tuple[int, int, int]:
        """Return shard, row group and row of the entry at a position."""
        group = int(np.searchsorted(self._starts, position, "right")) - 1
        return (*self._groups[group], position - int(self._starts[group]))


def _digest(row: dict[str, Any]) -> bytes:
    """Hash an entry for the fingerprint, to 16 bytes."""
    return hashlib.sha256(json.dumps(row, sort_keys=True).encode()).digest()[:16]


def _fingerprint(digests: Iterable[bytes]) -> str:
    digest = hashlib.sha256()
    for piece in digests:
        digest.update(piece)
    return digest.hexdigest()[:16]


def _check_id(entry: Entry, seen: set[str]) -> None:
    """Add an entry's id to `seen`; raise UserError if it is empty or repeated."""
    if not entry.id:
        raise UserError(f"entry {len(seen)} of the knowledge base (title `{entry.title}`) has no id; give it one")
    if entry.id in seen:
        raise UserError(f"entry {entry.id} comes twice; ids must be unique within a knowledge base")
    seen.add(entry.id)


@contextmanager
def _opened(path: Path) -> Iterator[pq.ParquetFile]:
    """Open a shard, with its columns and their types checked."""
    with open_parquet(path, "write or copy the knowledge base again") as file:
        stored = {field.name: field.type for field in file.schema_arrow}
        for field in schema_of(Entry):
            if field.name not in stored:
                raise UserError(f"{path} lacks the column `{field.name}`; write the knowledge base again")
            if (kind := stored[field.name]) != field.type:
                raise UserError(
                    f"{path}: the column `{field.name}` is {kind}, not {field.type}; write the knowledge base again"
                )
        yield file


def _entry(row: dict[str, Any]) -> Entry:
    if not row["id"]:
        raise UserError("an entry of the knowledge base has no id; write it again")
    try:
        return from_row(Entry, row)
    except ValueError as error:
        raise UserError(f"entry {row['id']} of the knowledge base: {error}; write it again") from error

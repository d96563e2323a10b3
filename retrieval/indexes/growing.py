"""Extend a finished index when entries were appended to its knowledge base."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import numpy as np

from reflectune.core.durable import write_json
from reflectune.core.errors import UserError
from reflectune.core.rejected import REJECTED
from reflectune.formats.knowledge_base import KnowledgeBase
from reflectune.retrieval.encoders.base import ImageTextEncoder
from reflectune.retrieval.indexes.checksums import CHECKSUMS, check_files
from reflectune.retrieval.indexes.entry_index import (
    ENTRIES,
    OWNERS,
    WITHOUT_IMAGE,
    choice_of,
    collection_of,
    files_of,
    read_positions,
)
from reflectune.retrieval.indexes.settings import MANIFEST
from reflectune.retrieval.indexes.writing import clear_rows, write_array
from reflectune.retrieval.stores.exact import ExactStore
from reflectune.retrieval.stores.milvus import MilvusStore


def starts_with(kb: KnowledgeBase, encoder: ImageTextEncoder, manifest: Mapping[str, Any]) -> bool:
    """Return True if the knowledge base is that of an index with the same encoder, with more entries appended."""
    entries = manifest.get("kb_entries", len(kb))
    return (
        0 < entries < len(kb)
        and manifest["encoder_fingerprint"] == encoder.fingerprint
        and kb.fingerprint_of(entries) == manifest["kb_fingerprint"]
    )


def reopen_index(
    folder: Path,
    manifest: Mapping[str, Any],
    kb: KnowledgeBase,
    paths: Callable[[int], Mapping[str, Path]],
    shard_rows: int,
) -> None:
    """Split a finished index into the shards that it was made of, and delete its manifest last.

    A last shard that was not full is encoded again. If the process is killed, the index is unchanged. The index's
    collection on a server is dropped, since the extended index gets a new one.

    Args:
        folder: Folder of the index.
        manifest: Its manifest.
        kb: The knowledge base, which begins with the index's entries.
        paths: Returns the files of a shard by its number.
        shard_rows: Entries per shard.
    """
    choice = choice_of(folder, manifest)
    check_files(folder, manifest.get(CHECKSUMS), files_of(choice, tuple(manifest["fields"])), verify=False)
    store = ExactStore(folder, manifest["fields"], precision=choice.precision)
    owners, entries, without_image = (read_positions(folder / name) for name in (OWNERS, ENTRIES, WITHOUT_IMAGE))
    has_image = np.ones(len(owners), dtype=bool)
    has_image[without_image] = False
    rejected = _rejected(folder, kb)
    for number in range(manifest["kb_entries"] // shard_rows):
        first, last = number * shard_rows, (number + 1) * shard_rows
        begin, end = np.searchsorted(entries, [first, last])
        rows = np.arange(*np.searchsorted(owners, [begin, end]))
        vectors = store.get(rows)
        with_images = has_image[rows]
        titled = np.searchsorted(owners[rows], np.arange(begin, end))  # the first row of each entry
        arrays = {
            "image": vectors["image"][with_images].astype(choice.precision),
            **{name: vectors[name][titled].astype(choice.precision) for name in store.fields if name != "image"},
            "owner": entries[owners[rows[with_images]]].astype(np.int64),
            "titled": entries[begin:end].astype(np.int64),
        }
        for part, array in arrays.items():
            write_array(paths(number)[part], array)
        write_json(paths(number)["rejected"], [row for position, row in rejected if first <= position < last])
    (folder / MANIFEST).unlink()
    if choice.kind == "milvus":
        collection = collection_of(manifest)
        with suppress(UserError), closing(MilvusStore(choice.address, collection, store, creates=False)) as server:
            server.drop()  # a server that can't be reached keeps it
    clear_rows(folder)  # rows that are encoded again may be as many as before


def _rejected(folder: Path, kb: KnowledgeBase) -> list[tuple[int, dict[str, Any]]]:
    """Return the rows that the build left out, each with its entry's position."""
    if not (folder / REJECTED).is_file():
        return []
    rows = [json.loads(line) for line in (folder / REJECTED).read_bytes().splitlines()]
    positions = {entry_id: position for position, entry_id in enumerate(kb.ids)}
    return [(positions[row["id"]], row) for row in rows]

"""Choice and opening of a store: `auto`, `exact`, `faiss`, or a server's address."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from reflectune.retrieval.stores.base import Fields, VectorStore
from reflectune.retrieval.stores.exact import ExactStore, Precision
from reflectune.retrieval.stores.names import full_address, is_lite, is_server

Kind = Literal["exact", "faiss", "milvus"]

EXACT_BYTES: Final = 2 << 30
"""2 GiB of vectors in float32: below it `auto` searches exactly."""
_CODE_BITS = 4
_CODE_EXTRA = 28
"""Bytes next to a row's codes: its number, and the factors of RaBitQ's estimate."""


@dataclass(frozen=True)
class Choice:
    """A store for an index.

    Attributes:
        kind: Of the store.
        precision: Of its rows' files.
        reason: Why this one, as a sentence.
        address: Of a Milvus server; of Milvus Lite the full path of its file.
    """

    kind: Kind
    precision: Precision
    reason: str
    address: str = ""

    def address_from(self, folder: Path) -> str:
        """Return the address for a manifest in `folder`: a file's path is relative to it, so that both can be moved."""
        return os.path.relpath(self.address, os.path.realpath(folder)) if is_lite(self.address) else self.address

    def disk(self, rows: int, fields: Fields) -> int:
        """Return the bytes on this machine's disk, by arithmetic."""
        numbers = rows * sum(fields.values())
        if self.kind == "exact":
            return 4 * numbers
        codes = numbers * _CODE_BITS // 8 + rows * _CODE_EXTRA if self.kind == "faiss" else 0
        return 2 * numbers + codes

    def memory(self, rows: int, fields: Fields) -> int:
        """Return the bytes that all searching processes of a machine share, with everything in use."""
        return self.disk(rows, fields) - (0 if self.kind == "exact" else 2 * rows * sum(fields.values()))


def choose(store: str, rows: int, fields: Fields) -> Choice:
    """Return the store of a name.

    Args:
        store: See `store_name`.
        rows: Number of rows.
        fields: Dimensions of each field.
    """
    if is_server(store):
        return Choice("milvus", "float16", "a server searches it", full_address(store))
    size = 4 * rows * sum(fields.values())
    reason = f"{rows:,} rows of {sum(fields.values()):,} numbers are {size / (1 << 30):.2g} GiB in float32"
    if store == "faiss" or (store == "auto" and size > EXACT_BYTES):
        return Choice("faiss", "float16", reason if store == "auto" else "it was asked for")
    return Choice("exact", "float32", reason if store == "auto" else "it was asked for")


def open_store(
    choice: Choice,
    folder: Path,
    fields: Fields,
    *,
    collection: str,
    creates: bool = True,
    search: Mapping[str, Any] | None = None,
    progress: Callable[[int], object] | None = None,
) -> VectorStore:
    """Open a store, or create one.

    Args:
        choice: Kind of store.
        folder: Folder of its files.
        fields: Dimensions of each field.
        collection: Name of its collection on a server.
        creates: Create a file of Milvus Lite that doesn't exist.
        search: Parameters that FAISS was calibrated to, of the index's manifest.
        progress: Called with the number of rows put into an approximate index.

    Raises:
        UserError: Its files are damaged or missing, or a server doesn't answer.
    """
    rows = ExactStore(folder, fields, precision=choice.precision)
    if choice.kind == "faiss":
        from reflectune.retrieval.stores.ivf import FaissStore

        return FaissStore(folder, rows, search=search, progress=progress)
    if choice.kind == "milvus":
        from reflectune.retrieval.stores.milvus import MilvusStore

        return MilvusStore(choice.address, collection, rows, creates=creates, progress=progress)
    return rows


def exact_store(store: VectorStore) -> VectorStore:
    """Return a store that compares every row; an exact store itself."""
    from reflectune.retrieval.stores.ivf import FaissStore
    from reflectune.retrieval.stores.milvus import MilvusStore

    return store.rows if isinstance(store, (FaissStore, MilvusStore)) else store

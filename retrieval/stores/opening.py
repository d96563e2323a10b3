"""Choose a vector store by its name in a config, and open it."""

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
"""2 GiB of float32 vectors: up to this size `auto` chooses exact search."""
_CODE_BITS = 4
_CODE_EXTRA = 28
"""Bytes per row besides its codes: the row number and the factors of RaBitQ's estimate."""


@dataclass(frozen=True)
class Choice:
    """A store for an index.

    Attributes:
        kind: Kind of store.
        precision: Precision of the vectors' files.
        reason: Reason for the choice, as a sentence.
        address: Address of the Milvus server, or the absolute path of the Milvus Lite file; "" for other kinds.
    """

    kind: Kind
    precision: Precision
    reason: str
    address: str = ""

    def address_from(self, folder: Path) -> str:
        """Return the address as a manifest in `folder` stores it.

        The path of a Milvus Lite file is relative to the folder, so that both can be moved together.
        """
        return os.path.relpath(self.address, os.path.realpath(folder)) if is_lite(self.address) else self.address

    def disk(self, rows: int, fields: Fields) -> int:
        """Return the estimated bytes on this machine's disk."""
        numbers = rows * sum(fields.values())
        if self.kind == "exact":
            return 4 * numbers
        codes = numbers * _CODE_BITS // 8 + rows * _CODE_EXTRA if self.kind == "faiss" else 0
        return 2 * numbers + codes

    def memory(self, rows: int, fields: Fields) -> int:
        """Return the estimated bytes of memory that all searching processes of a machine share."""
        vectors_on_disk = 0 if self.kind == "exact" else 2 * rows * sum(fields.values())
        return self.disk(rows, fields) - vectors_on_disk


def choose(store: str, rows: int, fields: Fields) -> Choice:
    """Choose the store for a name in a config.

    Args:
        store: See `store_name`.
        rows: Number of rows.
        fields: Dimensions of each field.
    """
    if is_server(store):
        return Choice("milvus", "float16", "a server searches it", full_address(store))
    size = 4 * rows * sum(fields.values())
    reason = "set by `store`"
    if store == "auto":
        reason = f"{rows:,} rows of {sum(fields.values()):,} numbers are {size / (1 << 30):.2g} GiB in float32"
        store = "faiss" if size > EXACT_BYTES else "exact"
    return Choice("faiss", "float16", reason) if store == "faiss" else Choice("exact", "float32", reason)


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
        choice: The store.
        folder: Folder of its files.
        fields: Dimensions of each field.
        collection: Name of its collection on a server.
        creates: Create a file of Milvus Lite that doesn't exist.
        search: Calibrated FAISS search parameters, from the index's manifest.
        progress: Called with the number of rows added to an approximate index.

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
    """Return the exact store under an approximate one; an exact store is returned itself."""
    from reflectune.retrieval.stores.ivf import FaissStore
    from reflectune.retrieval.stores.milvus import MilvusStore

    return store.rows if isinstance(store, (FaissStore, MilvusStore)) else store

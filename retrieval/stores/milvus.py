"""Search on a Milvus server, whose candidates are rescored on this machine.

A row's vectors are concatenated in one field, and the query's are weighted, which gives exact sums of similarities.
Milvus's hybrid search would merge ranked lists and drop rows that one of them lacks.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np

from reflectune.core.errors import UserError, one_line
from reflectune.retrieval.stores.base import Found, Rows, Vectors, checked_query, joined, rescored
from reflectune.retrieval.stores.exact import ExactStore
from reflectune.retrieval.stores.names import is_lite

TOKEN: Final = "MILVUS_TOKEN"
_FIELD, _ROW = "vector", "row"
BATCH = 1000
"""Rows per request: 10 MB at 2,560 dimensions; a server accepts 64 MB by default."""
MIN_TOP, MAX_TOP = 200, 16_384
"""Minimum number of candidates to rescore, and the maximum that a server returns."""
_TIMEOUT = 60.0
"""Seconds."""

IndexKind = Literal["IVF_RABITQ", "IVF_SQ8", "FLAT"]


def index_kind(version: str) -> IndexKind:
    """Return the index type closest to `FaissStore`'s that a server of this version has.

    Milvus has RaBitQ since 2.6; older servers use 8 bits per number. Milvus Lite, whose version isn't a number,
    compares all rows and ignores the number of cells (version 3.2).
    """
    numbers = version.removeprefix("v").split(".")
    if len(numbers) < 2 or not all(number.isdigit() for number in numbers[:2]):
        return "FLAT"
    return "IVF_RABITQ" if tuple(map(int, numbers[:2])) >= (2, 6) else "IVF_SQ8"


class MilvusStore:
    """Rows of an `ExactStore`, searched by a Milvus server.

    Args:
        address: `http://host:19530`, or a file ending in `.db` for Milvus Lite, which serves one process at a time.
        collection: Name of the collection, unique to the content.
        rows: The vectors, by which candidates are rescored.
        cells: Number of cells of the index of each of the server's segments (`nlist`).
        probes: Cells to search for a query (`nprobe`).
        creates: Create a Milvus Lite file that doesn't exist.
        progress: Called with the number of rows sent.

    The environment variable MILVUS_TOKEN, `user:password` or an API key, is sent to the server if it is set.

    Raises:
        UserError: No server answers at the address, or the file doesn't exist or is in use.
    """

    def __init__(
        self,
        address: str,
        collection: str,
        rows: ExactStore,
        *,
        cells: int = 1024,
        probes: int = 64,
        creates: bool = True,
        progress: Callable[[int], object] | None = None,
    ) -> None:
        from pymilvus import MilvusClient  # an extra

        self.address, self.collection, self.rows, self.fields = address, collection, rows, rows.fields
        self._cells, self._probes, self._progress = cells, probes, progress
        if is_lite(address):
            self._prepare_file(creates)
        with self._user_errors():
            self._client = MilvusClient(address, token=os.environ.get(TOKEN, ""), timeout=_TIMEOUT)
            self._kind = index_kind(str(self._client.get_server_version()))

    def __len__(self) -> int:
        return len(self.rows)

    def add(self, vectors: Mapping[str, Vectors]) -> None:
        """See `VectorStore`."""
        self.rows.add(vectors)

    def get(self, rows: Rows) -> dict[str, Vectors]:
        """See `VectorStore`."""
        return self.rows.get(rows)

    def finish(self) -> None:
        """Send the rows that the server lacks. Row numbers are primary keys, so that resent rows aren't duplicated."""
        with self._user_errors():
            if not self._client.has_collection(self.collection):
                self._create()
            if not self._has_index():  # a killed process may have created only the collection
                self._client.create_index(self.collection, self._index())
            self._client.load_collection(self.collection)  # queries count only loaded rows
            sent = self.sent()
            self._send(sent - sent % BATCH if sent < len(self) else sent)  # the last request may be incomplete
            if self.sent() < len(self):  # the server lost rows other than the last ones
                self._send(0)
        self.check()

    def check(self) -> None:
        """Load the collection, and compare its number of rows and their length with the store's.

        Raises:
            UserError: The collection is missing or differs.
        """
        with self._user_errors():
            if not self._client.has_collection(self.collection) or not self._has_index():
                raise UserError(f"{self._location} doesn't exist; build the index again, which sends its rows")
            fields = self._client.describe_collection(self.collection)["fields"]
            dimensions = {field["name"]: field["params"].get("dim") for field in fields}
            self._client.load_collection(self.collection)  # another process or a restart may have released it
            sent = self.sent()
        if set(dimensions) != {_ROW, _FIELD} or int(dimensions[_FIELD]) != sum(self.fields.values()):
            raise UserError(f"{self._location} has the fields {dimensions}: it was not made from this index; drop it")
        if sent != len(self):
            raise UserError(
                f"{self._location} has {sent:,} rows, the index {len(self):,}; build the index again to send the rest"
            )

    def sent(self) -> int:
        """Return the number of rows on the server."""
        counted = self._client.query(self.collection, filter=f"{_ROW} >= 0", output_fields=["count(*)"])
        return int(counted[0]["count(*)"])

    def search(self, query: Mapping[str, Vectors], top: int) -> Found:
        """See `VectorStore`. Only candidates that the server finds are ranked, by exact scores."""
        vectors = checked_query(query, self.fields, top)
        limit = min(max(top, MIN_TOP), max(len(self), 1), MAX_TOP)
        probing: dict[str, Any] = {} if self._kind == "FLAT" else {"nprobe": self._probes}
        refining = {"refine_k": 2} if self._kind == "IVF_RABITQ" else {}
        with self._user_errors():
            answers = self._client.search(
                self.collection,
                data=list(joined(vectors, self.fields)),
                limit=limit,
                search_params={"metric_type": "IP", "params": probing | refining},
                output_fields=[_ROW],
            )
        candidates = np.full((len(answers), limit), -1, dtype=np.int64)
        for padded, answer in zip(candidates, answers, strict=True):
            padded[: len(answer)] = [hit[_ROW] for hit in answer]
        return rescored(vectors, self, candidates, top)

    def drop(self) -> None:
        """Delete the collection on the server; the local rows stay."""
        with self._user_errors():
            self._client.drop_collection(self.collection)

    def close(self) -> None:
        """Close the connection, by which Milvus Lite releases its file."""
        self._client.close()

    def _send(self, begin: int) -> None:
        """Send the rows from row `begin` to the last one."""
        for first in range(begin, len(self), BATCH):
            numbers = np.arange(first, min(first + BATCH, len(self)))
            vectors = joined(self.rows.get(numbers), self.fields)
            rows = [{_ROW: int(row), _FIELD: vector} for row, vector in zip(numbers, vectors, strict=True)]
            self._client.upsert(self.collection, rows)
            if self._progress is not None:
                self._progress(len(rows))
        self._client.flush(self.collection)

    def _create(self) -> None:
        from pymilvus import DataType

        schema = self._client.create_schema(auto_id=False, enable_dynamic_field=False)
        schema.add_field(_ROW, DataType.INT64, is_primary=True)
        schema.add_field(_FIELD, DataType.FLOAT_VECTOR, dim=sum(self.fields.values()))
        self._client.create_collection(self.collection, schema=schema, consistency_level="Strong")

    def _has_index(self) -> bool:
        return _FIELD in self._client.list_indexes(self.collection)

    def _prepare_file(self, creates: bool) -> None:
        """Create the Milvus Lite file's folder, or refuse a missing file if none is to be created."""
        logging.getLogger("milvus_lite").setLevel(logging.CRITICAL)  # it logs tracebacks of the errors it raises
        if creates:
            Path(self.address).parent.mkdir(parents=True, exist_ok=True)
        elif not os.path.exists(self.address):
            raise UserError(
                f"the Milvus Lite file of the index {self.rows.folder} doesn't exist: {self.address}; move it back, or "
                "run `build_index` again, which creates it from the index without encoding anything"
            )

    def _index(self) -> Any:
        parameters = self._client.prepare_index_params()
        cells: dict[str, Any] = {} if self._kind == "FLAT" else {"nlist": self._cells}
        refining = {"refine": True, "refine_type": "SQ8"} if self._kind == "IVF_RABITQ" else {}
        parameters.add_index(_FIELD, index_type=self._kind, metric_type="IP", params=cells | refining)
        return parameters

    @property
    def _location(self) -> str:
        return f"the collection {self.collection} on {self.address}"

    @contextmanager
    def _user_errors(self) -> Iterator[None]:
        """Turn the server's errors inside the block into one-line `UserError`s."""
        from pymilvus.exceptions import MilvusException

        try:
            yield
        except MilvusException as error:
            message = one_line(error.message or error)
            server, fix = f"the Milvus server at {self.address}", "start it and run the command again"
            if is_lite(self.address):
                server = f"Milvus Lite's file {self.address}"
                fix = "end the process that has it open, or use another file"
            raise UserError(
                f"{server} failed: {message}; {fix}, or build the index without a server, by `--store faiss`"
            ) from error

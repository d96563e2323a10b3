"""Exact search over memory-mapped files, which all processes of a machine share."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

from reflectune.core.errors import UserError
from reflectune.retrieval.stores.base import Fields, Found, Rows, Vectors, best, checked_query, checked_rows, rescored

Precision = Literal["float32", "float16"]
SUFFIXES: Final[Mapping[Precision, str]] = {"float32": "f32", "float16": "f16"}

BLOCK = 1 << 24
"""Numbers per block of rows: 64 MiB in float32."""
_NUMBERS_A_SCORE = 4
"""Approximate memory of a score in units of 4 bytes: score and row number, copied once when blocks are joined."""
_NUMBERS_A_COPY = 4
"""Approximate memory of a number that is scored exactly, in units of 4 bytes: itself, and two float64 copies."""
_SPARE = 8
"""Rows beyond `top` to rescore, since float32 scores depend on the batch; more ties go to `_rescore_above`."""


class ExactStore:
    """Rows in one memory-mapped file per field, little-endian numbers without a header.

    Args:
        folder: Folder of the files, `FIELD.f32` or `FIELD.f16`; created by the first `add`.
        fields: Dimensions of each field.
        precision: Precision of the files, and so of scores. In float16 a unit vector has 3 significant digits.
        repair: Truncate the files to whole rows that all of them have.

    Raises:
        UserError: A file ends within a row, or the files have different numbers of rows, and `repair` is off.
    """

    def __init__(
        self, folder: str | Path, fields: Fields, *, precision: Precision = "float32", repair: bool = False
    ) -> None:
        self.folder, self.fields, self.precision = Path(folder), dict(fields), precision
        self._type = np.dtype(precision).newbyteorder("<")
        self._map(repair)

    def path(self, field: str) -> Path:
        """Return the file of a field."""
        return self.folder / f"{field}.{SUFFIXES[self.precision]}"

    def __len__(self) -> int:
        return self._count

    def add(self, vectors: Mapping[str, Vectors]) -> None:
        """See `VectorStore`. `repair` drops rows whose writing was interrupted."""
        rows = checked_rows(vectors, self.fields)
        self.folder.mkdir(parents=True, exist_ok=True)
        for name, array in rows.items():
            with self.path(name).open("ab") as file:
                file.write(np.ascontiguousarray(array, dtype=self._type).data)
                file.flush()
                os.fsync(file.fileno())
        self._map(repair=False)

    def finish(self) -> None:
        """Do nothing: added rows are searchable at once."""

    def get(self, rows: Rows) -> dict[str, Vectors]:
        """See `VectorStore`."""
        return {name: np.asarray(array[rows], dtype=np.float32) for name, array in self._arrays.items()}

    def search(self, query: Mapping[str, Vectors], top: int) -> Found:
        """See `VectorStore`. All rows are compared."""
        vectors = checked_query(query, self.fields, top)
        queries = len(next(iter(vectors.values())))
        candidates = min(top + _SPARE, max(len(self), 1))
        rows = np.full((queries, 0), -1, dtype=np.int64)
        scores = np.full((queries, 0), -np.inf, dtype=np.float32)
        numbers_a_row = max(sum(self.fields[name] for name in vectors), _NUMBERS_A_SCORE * queries)
        for first, last in self._blocks(numbers_a_row):
            block = self._scores(vectors, first, last)  # (queries, rows)
            numbers = np.broadcast_to(np.arange(first, first + block.shape[1]), block.shape)
            rows, scores = np.concatenate([rows, numbers], axis=1), np.concatenate([scores, block], axis=1)
            highest = np.stack([best(row, candidates) for row in scores])
            rows, scores = np.take_along_axis(rows, highest, axis=1), np.take_along_axis(scores, highest, axis=1)
        found = rescored(vectors, self, rows, top)
        if candidates < len(self):
            thresholds = scores[:, top - 1] - self._rounding(vectors, rows[:, [top - 1, -1]])  # (queries,)
            for index in np.flatnonzero(scores[:, -1] > thresholds):  # rows as good as the last candidate were dropped
                query = {name: array[index : index + 1] for name, array in vectors.items()}
                rescored_query = self._rescore_above(query, thresholds[index], top)
                found.rows[index], found.scores[index] = rescored_query.rows[0], rescored_query.scores[0]
        return found

    def _rescore_above(self, query: Mapping[str, Vectors], threshold: float, top: int) -> Found:
        """Return the best rows of one query by exact scores, of all rows that score above `threshold` in float32."""
        found = Found(np.full((1, 0), -1, dtype=np.int64), np.full((1, 0), -np.inf))
        for first, last in self._blocks(_NUMBERS_A_COPY * sum(self.fields[name] for name in query)):
            near = first + np.flatnonzero(self._scores(query, first, last)[0] > threshold)
            if len(near):
                found = rescored(query, self, np.concatenate([found.rows, near[None]], axis=1), top)
        return found

    def _rounding(self, query: Mapping[str, Vectors], rows: Rows) -> npt.NDArray[np.float64]:
        """Bound the difference between float32 scores of two batches, shape (queries,).

        Args:
            query: The queries.
            rows: Some rows of each, shape (queries, n); other rows are assumed to have no longer vectors.
        """
        lengths = {name: np.linalg.norm(array, axis=2).max(1) for name, array in self.get(rows).items()}
        products = [
            np.sqrt(self.fields[name]) * np.linalg.norm(array, axis=1) * lengths[name] for name, array in query.items()
        ]
        return 2 * float(np.finfo(np.float32).eps) * np.stack(products).astype(np.float64).sum(0)

    def _blocks(self, numbers_a_row: int) -> Iterator[tuple[int, int]]:
        """Yield the first row and the end (exclusive) of each block."""
        step = max(1, BLOCK // numbers_a_row)
        return ((first, min(first + step, len(self))) for first in range(0, len(self), step))

    def _scores(self, query: Mapping[str, Vectors], first: int, last: int) -> npt.NDArray[np.float32]:
        """Return float32 scores of the rows from `first` to before `last`, shape (queries, rows)."""
        parts = [
            array @ np.asarray(self._arrays[name][first:last], dtype=np.float32).T for name, array in query.items()
        ]
        return sum(parts[1:], start=parts[0])

    def _map(self, repair: bool) -> None:
        """Map the files at their current size."""
        sizes = {name: self.path(name).stat().st_size if self.path(name).exists() else 0 for name in self.fields}
        widths = {name: dimensions * self._type.itemsize for name, dimensions in self.fields.items()}
        self._count = min(sizes[name] // widths[name] for name in self.fields)
        for name, width in widths.items():
            if sizes[name] != self._count * width:
                if not repair:
                    raise UserError(
                        f"{self.path(name)} has {sizes[name]:,} bytes, expected {self._count * width:,} for "
                        f"{self._count:,} rows of {width:,} bytes: it was cut or replaced; restore it, or delete the "
                        "folder and build the index again"
                    )
                os.truncate(self.path(name), self._count * width)
        self._arrays: dict[str, npt.NDArray[np.floating]] = {
            name: np.memmap(self.path(name), self._type, "r", shape=(self._count, dimensions))
            if self._count
            else np.zeros((0, dimensions), dtype=self._type)
            for name, dimensions in self.fields.items()
        }

"""The contract of vector stores: rows of several fields, searched by weighted sums of inner products."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

Vectors = npt.NDArray[np.float32]
Rows = npt.NDArray[np.int64]
Fields = Mapping[str, int]
"""Dimensions of each field, by name, in the order in which they are laid side by side."""


class Found(NamedTuple):
    """Result of a search.

    Attributes:
        rows: Shape (queries, top), best first; equal scores in order of row; -1 where there are fewer.
        scores: Shape (queries, top); -inf where there are fewer.
    """

    rows: Rows
    scores: npt.NDArray[np.float64]


class VectorStore(Protocol):
    """Vectors by row number, from 0 in the order of adding.

    A row has one vector in each field, zero where it has no value. A query has one vector for each field that it
    searches. The score of a row is the sum of their inner products with the row's vectors. Field weights belong to the
    query, whose vectors are multiplied by them, so that one store can be searched with any weights.
    """

    @property
    def fields(self) -> Fields:
        """Dimensions of each field."""
        ...

    def __len__(self) -> int:
        """Return the number of rows that were added."""
        ...

    def add(self, vectors: Mapping[str, Vectors]) -> None:
        """Append rows, durably: all of them or none.

        Args:
            vectors: Vectors by field, shape (rows, dimensions).

        Raises:
            ValueError: A field is missing or of another shape, or a vector is not finite.
        """
        ...

    def finish(self) -> None:
        """Make added rows searchable; until then they may not be found. Repeated calls change nothing."""
        ...

    def get(self, rows: Rows) -> dict[str, Vectors]:
        """Return the vectors of rows, of each field, shape (rows, dimensions), as precisely as they are kept."""
        ...

    def search(self, query: Mapping[str, Vectors], top: int) -> Found:
        """Return the rows with the highest scores.

        Args:
            query: Query vectors by field, shape (queries, dimensions), each multiplied by its weight.
            top: At most this many rows of each query, at least 1.

        Raises:
            ValueError: The fields are none or unknown, shapes differ, a number is not finite, or `top` is below 1.
        """
        ...


def checked_rows(vectors: Mapping[str, Vectors], fields: Fields) -> dict[str, Vectors]:
    """Return rows to add as float32, or ValueError; see `VectorStore.add`."""
    if set(vectors) != set(fields):
        raise ValueError(f"rows have the fields {sorted(vectors)}, the store has {sorted(fields)}")
    rows = {name: np.asarray(vectors[name], dtype=np.float32) for name in fields}
    _check_shapes(rows, fields, "rows")
    return rows


def checked_query(query: Mapping[str, Vectors], fields: Fields, top: int) -> dict[str, Vectors]:
    """Return a query as float32, or ValueError; see `VectorStore.search`."""
    if top < 1:
        raise ValueError(f"top must be at least 1, found {top}")
    if not query or not set(query) <= set(fields):
        raise ValueError(f"a query asks about {sorted(query)}, the store has {sorted(fields)}")
    vectors = {name: np.asarray(query[name], dtype=np.float32) for name in fields if name in query}
    _check_shapes(vectors, fields, "queries")
    return vectors


def _check_shapes(vectors: Mapping[str, Vectors], fields: Fields, what: str) -> None:
    counts = {len(array) for array in vectors.values()}
    for name, array in vectors.items():
        if array.ndim != 2 or array.shape[1] != fields[name] or len(counts) != 1:
            raise ValueError(f"`{name}` has {what} of shape {array.shape}, not (n, {fields[name]}) with one n for all")
        if not np.isfinite(array).all():
            raise ValueError(f"`{name}` has {what} that aren't finite")


def joined(vectors: Mapping[str, Vectors], fields: Fields) -> Vectors:
    """Return the fields' vectors side by side, shape (n, all dimensions); zeros for a field that is not searched."""
    count = len(next(iter(vectors.values())))
    blank = {name: np.zeros((count, size), dtype=np.float32) for name, size in fields.items() if name not in vectors}
    return np.concatenate([{**vectors, **blank}[name] for name in fields], axis=1)


def best(scores: npt.NDArray[np.floating], top: int) -> Rows:
    """Return positions of the `top` highest scores, highest first, equal ones in order of position."""
    if top >= len(scores):
        return np.argsort(-scores, kind="stable")
    threshold = np.partition(scores, -top)[-top]
    candidates = np.flatnonzero(scores >= threshold)
    return candidates[np.argsort(-scores[candidates], kind="stable")][:top]


def inner(rows: Vectors, query: Vectors) -> npt.NDArray[np.float64]:
    """Return inner products of rows with one query, in float64: equal to the last digit, whatever the other rows are.

    Args:
        rows: Shape (rows, dimensions).
        query: Shape (dimensions,).
    """
    return (rows.astype(np.float64) * query).sum(1)


def rescored(query: Mapping[str, Vectors], store: VectorStore, rows: Rows, top: int) -> Found:
    """Return the best candidates by their exact scores, in float64: independent of other queries and candidates.

    Args:
        query: One query a row of `rows`, from `checked_query`.
        store: Store of the vectors.
        rows: Candidates, shape (queries, candidates), each once; -1 for none.
        top: Number of rows to return.
    """
    wanted = np.unique(rows[rows >= 0])
    vectors = {name: array for name, array in store.get(wanted).items() if name in query}
    found = Found(np.full((len(rows), top), -1, dtype=np.int64), np.full((len(rows), top), -np.inf))
    for place, candidates in enumerate(rows):
        numbers = np.sort(candidates[candidates >= 0])
        positions = np.searchsorted(wanted, numbers)
        scores = np.zeros(len(numbers))
        for name, array in vectors.items():
            scores += inner(array[positions], query[name][place])
        order = best(scores, top)
        found.rows[place, : len(order)], found.scores[place, : len(order)] = numbers[order], scores[order]
    return found

"""Interface of vector stores: rows of several fields, searched by weighted sums of inner products."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

Vectors = npt.NDArray[np.float32]
Rows = npt.NDArray[np.int64]
Fields = Mapping[str, int]
"""Dimensions of each field, by name, in the order in which their vectors are concatenated."""


class Found(NamedTuple):
    """Result of a search.

    Attributes:
        rows: Shape (queries, top), best first, equal scores by row number; padded with -1.
        scores: Shape (queries, top); padded with -inf.
    """

    rows: Rows
    scores: npt.NDArray[np.float64]


class VectorStore(Protocol):
    """Vectors by row number, counted from 0 in the order of adding.

    A row has one vector in each field; a zero vector stands for a missing value. A query has one vector for each field
    that it searches. A row's score is the sum of the inner products of its vectors and the query's. Field weights are
    multiplied into the query's vectors, so that one store can be searched with any weights.
    """

    @property
    def fields(self) -> Fields:
        """Dimensions of each field."""
        ...

    def __len__(self) -> int:
        """Return the number of rows that were added."""
        ...

    def add(self, vectors: Mapping[str, Vectors]) -> None:
        """Append rows durably, all of them or none.

        Args:
            vectors: Vectors by field, shape (rows, dimensions).

        Raises:
            ValueError: A field is missing or of another shape, or a vector is not finite.
        """
        ...

    def finish(self) -> None:
        """Make added rows searchable. Repeated calls change nothing."""
        ...

    def get(self, rows: Rows) -> dict[str, Vectors]:
        """Return the stored vectors of rows by field, shape (rows, dimensions)."""
        ...

    def search(self, query: Mapping[str, Vectors], top: int) -> Found:
        """Return the rows with the highest scores.

        Args:
            query: Query vectors by field, shape (queries, dimensions), each multiplied by its weight.
            top: Maximum rows per query, at least 1.

        Raises:
            ValueError: No field is given, a field is unknown, shapes differ, a number is not finite, or `top` is below
                1.
        """
        ...


def checked_rows(vectors: Mapping[str, Vectors], fields: Fields) -> dict[str, Vectors]:
    """Validate rows to add and return them as float32; see `VectorStore.add`."""
    if set(vectors) != set(fields):
        raise ValueError(f"rows have the fields {sorted(vectors)}, the store has {sorted(fields)}")
    rows = {name: np.asarray(vectors[name], dtype=np.float32) for name in fields}
    _check_shapes(rows, fields, "rows")
    return rows


def checked_query(query: Mapping[str, Vectors], fields: Fields, top: int) -> dict[str, Vectors]:
    """Validate queries and return them as float32; see `VectorStore.search`."""
    if top < 1:
        raise ValueError(f"top must be at least 1, found {top}")
    if not query or not set(query) <= set(fields):
        raise ValueError(f"the query has the fields {sorted(query)}, the store has {sorted(fields)}")
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
    """Concatenate the fields' vectors, with zeros for missing fields; shape (n, sum of dimensions)."""
    count = len(next(iter(vectors.values())))
    zeros = {name: np.zeros((count, size), dtype=np.float32) for name, size in fields.items()}
    return np.concatenate([{**zeros, **vectors}[name] for name in fields], axis=1)


def best(scores: npt.NDArray[np.floating], top: int) -> Rows:
    """Return the positions of the `top` highest scores, highest first, equal scores by position."""
    if top >= len(scores):
        return np.argsort(-scores, kind="stable")
    threshold = np.partition(scores, -top)[-top]
    candidates = np.flatnonzero(scores >= threshold)
    return candidates[np.argsort(-scores[candidates], kind="stable")][:top]


def inner(rows: Vectors, query: Vectors) -> npt.NDArray[np.float64]:
    """Return inner products of rows with one query, in float64: bitwise independent of the other rows.

    Args:
        rows: Shape (rows, dimensions).
        query: Shape (dimensions,).
    """
    return (rows.astype(np.float64) * query).sum(1)


def rescored(query: Mapping[str, Vectors], store: VectorStore, rows: Rows, top: int) -> Found:
    """Rank candidates by exact scores in float64, which don't depend on other queries or candidates.

    Args:
        query: Queries from `checked_query`, one for each row of `rows`.
        store: Store of the vectors.
        rows: Distinct candidates of each query, shape (queries, candidates), padded with -1.
        top: Number of rows to return.
    """
    distinct = np.unique(rows[rows >= 0])
    vectors = {name: array for name, array in store.get(distinct).items() if name in query}
    found = Found(np.full((len(rows), top), -1, dtype=np.int64), np.full((len(rows), top), -np.inf))
    for query_index, padded in enumerate(rows):
        candidates = np.sort(padded[padded >= 0])
        positions = np.searchsorted(distinct, candidates)
        scores = np.zeros(len(candidates))
        for name, array in vectors.items():
            scores += inner(array[positions], query[name][query_index])
        order = best(scores, top)
        found.rows[query_index, : len(order)] = candidates[order]
        found.scores[query_index, : len(order)] = scores[order]
    return found

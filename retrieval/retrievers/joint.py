"""Joint search of several knowledge bases, each with its own encoder."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import zip_longest
from typing import TYPE_CHECKING, Protocol, TypeAlias

from reflectune.core.errors import UnusableInput, UserError, one_line
from reflectune.formats.hits import PassageHit
from reflectune.retrieval.retrievers.queries import Query

if TYPE_CHECKING:  # slow to import
    from reflectune.retrieval.retrievers.text_retriever import TextRetriever

JointHits: TypeAlias = Mapping[str, Sequence[PassageHit]]
"""Distinct hits of one query by searcher name, in the order of searchers, best first."""


class Searcher(Protocol):
    """A searchable knowledge base.

    Attributes:
        name: Name in results, budgets and errors.
    """

    name: str

    def search(self, queries: Sequence[Query], top: int) -> list[list[PassageHit]]:
        """Return for each query, in order, at most `top` passages, best first; `top` is at least 1."""
        ...


class Texts:
    """Text knowledge base, searched by the queries' texts; a query without text has no hits.

    Args:
        name: Name in results and errors.
        retriever: Retriever of its passages.
    """

    def __init__(self, name: str, retriever: TextRetriever) -> None:
        self.name, self._retriever = name, retriever

    def search(self, queries: Sequence[Query], top: int) -> list[list[PassageHit]]:
        """Return for each query the `top` passages that are most similar to its text, best first."""
        rankings = iter(self._retriever.search([query.text for query in queries if query.has_text], top))
        return [next(rankings) if query.has_text else [] for query in queries]


class JointSearch:
    """Search several knowledge bases concurrently.

    Results don't depend on which knowledge base answers first. An error in one knowledge base ends the search, since
    results without it would look complete.

    Args:
        searchers: Searchers of the knowledge bases, with different names.

    Example:
        >>> joint = JointSearch([Texts("wikipedia", texts), Summaries("pairs", retriever, knowledge)])
        >>> budgets = {"wikipedia": split_budget(20, 2), "pairs": split_budget(10, 2)}
        >>> record_query, trajectory_query = joint.search([Query(image, "…"), Query(image, "…")], budgets)
    """

    def __init__(self, searchers: Sequence[Searcher]) -> None:
        self._searchers = tuple(searchers)
        self.names = tuple(searcher.name for searcher in searchers)

    def search(self, queries: Sequence[Query], tops: Mapping[str, Sequence[int]]) -> Sequence[JointHits]:
        """Return the hits of each query.

        Args:
            queries: Queries, which are searched independently.
            tops: Maximum passages of each query, by searcher name; 0 skips the search.

        Returns:
            The hits of each query, in order.

        Raises:
            UserError: A knowledge base can't be searched; the message names it. Other exceptions have its name as a
                note.
        """
        hits: list[dict[str, list[PassageHit]]] = [{name: [] for name in self.names} for _ in queries]
        with ThreadPoolExecutor(len(self._searchers), thread_name_prefix="joint-search") as pool:
            futures = [pool.submit(_search, one, queries, tops[one.name]) for one in self._searchers]
        for name, future in zip(self.names, futures, strict=True):
            for index, found in _result(name, future).items():
                ranked = enumerate(_distinct(found), start=1)
                hits[index][name] = [dataclasses.replace(hit, rank=rank) for rank, hit in ranked]
        return hits


def merged(bases: Sequence[Sequence[Sequence[PassageHit]]]) -> list[PassageHit]:
    """Concatenate the knowledge bases' hits, interleaved by rank over queries, without duplicates."""
    return _distinct([hit for lists in bases for row in zip_longest(*lists) for hit in row if hit is not None])


def split_budget(top: int, parts: int | Sequence[int]) -> list[int]:
    """Split a budget of documents over several queries, evenly or by shares (largest remainder method).

    Equal remainders are rounded up from the first query on.

    Example:
        >>> split_budget(21, 2)
        [11, 10]

        MI-RAG gives half to the expanded question, and a quarter to each of two follow-ups:

        >>> split_budget(20, [2, 1, 1])
        [10, 5, 5]

    Raises:
        ValueError: `top` is negative, or no queries are given.
    """
    shares = [1] * parts if isinstance(parts, int) else list(parts)
    if top < 0 or not shares:
        raise ValueError(f"a budget of {top} documents can't be split over {len(shares)} queries")
    exact = [divmod(top * share, sum(shares)) for share in shares]
    budgets = [quotient for quotient, _ in exact]
    by_remainder = sorted(range(len(shares)), key=lambda query: -exact[query][1])
    for query in by_remainder[: top - sum(budgets)]:
        budgets[query] += 1
    return budgets


def _search(searcher: Searcher, queries: Sequence[Query], tops: Sequence[int]) -> dict[int, list[PassageHit]]:
    """Return a searcher's hits by the query's index. Queries with the same budget are searched together."""
    groups: dict[int, list[int]] = {}
    for index, top in enumerate(tops):
        if top:
            groups.setdefault(top, []).append(index)
    hits_of: dict[int, list[PassageHit]] = {}
    for top, indices in groups.items():
        rankings = searcher.search([queries[index] for index in indices], top)
        hits_of.update((index, hits[:top]) for index, hits in zip(indices, rankings, strict=True))
    return hits_of


def _result(name: str, future: Future[dict[int, list[PassageHit]]]) -> dict[int, list[PassageHit]]:
    try:
        return future.result()
    except UserError as error:
        kind = UnusableInput if isinstance(error, UnusableInput) else UserError
        raise kind(f"searching the knowledge base `{name}`: {error}") from error
    except OSError as error:
        raise UserError(
            f"searching the knowledge base `{name}` failed ({type(error).__name__}: {one_line(error)}); fix this, "
            "or set the budget of this knowledge base to 0"
        ) from error
    except Exception as error:
        error.add_note(f"searching the knowledge base `{name}`")
        raise


def _distinct(hits: Sequence[PassageHit]) -> list[PassageHit]:
    """Drop repeated passages.

    The text is part of a passage's identity, since two splits of one knowledge base use the same ids.
    """
    first: dict[tuple[str, str, str], PassageHit] = {}
    for hit in hits:
        first.setdefault((hit.kb, hit.passage.id, hit.passage.text), hit)
    return list(first.values())

"""Joint search: several knowledge bases at once, each with its own encoder."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import zip_longest
from typing import TYPE_CHECKING, Protocol, TypeAlias

from reflectune.core.errors import UnusableInput, UserError
from reflectune.formats.hits import PassageHit
from reflectune.retrieval.retrievers.queries import Query

if TYPE_CHECKING:  # slow to import
    from reflectune.retrieval.retrievers.text_retriever import TextRetriever

JointHits: TypeAlias = Mapping[str, Sequence[PassageHit]]
"""Hits of one query by the searcher's name, in the order of searchers, each passage once, best first."""


class Searcher(Protocol):
    """A knowledge base that is searched with queries.

    Attributes:
        name: Name in results, budgets and errors.
    """

    name: str

    def search(self, queries: Sequence[Query], top: int) -> list[list[PassageHit]]:
        """Return for each query, in order, at most `top` passages, best first; `top` is at least 1."""
        ...


class Texts:
    """Text knowledge base, searched by a query's text only; a query without text finds nothing.

    Args:
        name: Name in results and errors.
        retriever: Retriever of its passages.
    """

    def __init__(self, name: str, retriever: TextRetriever) -> None:
        self.name, self._retriever = name, retriever

    def search(self, queries: Sequence[Query], top: int) -> list[list[PassageHit]]:
        """Return for each query the `top` passages that are nearest to its text, best first."""
        rankings = iter(self._retriever.search([query.text for query in queries if query.has_text], top))
        return [next(rankings) if query.has_text else [] for query in queries]


class JointSearch:
    """Search several knowledge bases at the same time.

    Results depend on queries and knowledge bases, never on which one answers first. A failing knowledge base ends the
    search with its name, since results without it would pass for complete.

    Args:
        searchers: One a knowledge base, each with a name of its own.

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
            queries: Any number of queries, of any questions; each is searched independently.
            tops: Passages of each query by each searcher's name; 0 skips it.

        Returns:
            The hits of each query, in order.

        Raises:
            UserError: A knowledge base can't be searched; the first one is named. Any other error has its name as a
                note.
        """
        hits: list[dict[str, list[PassageHit]]] = [{name: [] for name in self.names} for _ in queries]
        with ThreadPoolExecutor(len(self._searchers), thread_name_prefix="joint-search") as pool:
            futures = [pool.submit(_search, each, queries, tops[each.name]) for each in self._searchers]
        for name, future in zip(self.names, futures, strict=True):
            for place, best in _result(name, future).items():
                hits[place][name] = [dataclasses.replace(hit, rank=rank) for rank, hit in enumerate(_once(best), 1)]
        return hits


def merged(bases: Sequence[Sequence[Sequence[PassageHit]]]) -> list[PassageHit]:
    """Return the hits base after base; of a base the queries' best in turn; each passage once."""
    return _once([hit for lists in bases for row in zip_longest(*lists) for hit in row if hit is not None])


def split_budget(top: int, parts: int | Sequence[int]) -> list[int]:
    """Split a budget of documents over several queries: evenly, or by their shares.

    The largest remainders are rounded up, of equal ones the first.

    Example:
        >>> split_budget(21, 2)
        [11, 10]

        MI-RAG gives half to the expanded question, and the other half to its two follow-ups:

        >>> split_budget(20, [2, 1, 1])
        [10, 5, 5]

    Raises:
        ValueError: `top` is negative, or no query is given.
    """
    shares = [1] * parts if isinstance(parts, int) else list(parts)
    if top < 0 or not shares:
        raise ValueError(f"a budget of {top} documents can't be split over {len(shares)} queries")
    exact = [divmod(top * share, sum(shares)) for share in shares]
    whole = [each for each, _ in exact]
    by_remainder = sorted(range(len(shares)), key=lambda place: -exact[place][1])
    for place in by_remainder[: top - sum(whole)]:
        whole[place] += 1
    return whole


def _search(searcher: Searcher, queries: Sequence[Query], tops: Sequence[int]) -> dict[int, list[PassageHit]]:
    """Return a searcher's hits by the query's place; queries of one budget are searched together."""
    groups: dict[int, list[int]] = {}
    for place, top in enumerate(tops):
        if top:
            groups.setdefault(top, []).append(place)
    hits_by_place: dict[int, list[PassageHit]] = {}
    for top, places in groups.items():
        lists = searcher.search([queries[place] for place in places], top)
        hits_by_place.update((place, list(hits[:top])) for place, hits in zip(places, lists, strict=True))
    return hits_by_place


def _result(name: str, future: Future[dict[int, list[PassageHit]]]) -> dict[int, list[PassageHit]]:
    try:
        return future.result()
    except UserError as error:
        kind = UnusableInput if isinstance(error, UnusableInput) else UserError
        raise kind(f"searching the knowledge base `{name}`: {error}") from error
    except OSError as error:
        cause = " ".join(str(error).split())
        raise UserError(
            f"searching the knowledge base `{name}` failed ({type(error).__name__}: {cause}); fix this, "
            "or set the budget of this knowledge base to 0"
        ) from error
    except Exception as error:
        error.add_note(f"searching the knowledge base `{name}`")
        raise


def _once(hits: Sequence[PassageHit]) -> list[PassageHit]:
    """Return each passage of a knowledge base at its first place.

    Two splits of one knowledge base have equal ids for different texts.
    """
    first: dict[tuple[str, str, str], PassageHit] = {}
    for hit in hits:
        first.setdefault((hit.kb, hit.passage.id, hit.passage.text), hit)
    return list(first.values())

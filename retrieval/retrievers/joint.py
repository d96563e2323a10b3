"""Joint search: several knowledge bases at once, each with its own encoder, merged by a named rule."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import TYPE_CHECKING, Final, Literal, Protocol

from reflectune.core.errors import UserError
from reflectune.formats.hits import PassageHit
from reflectune.retrieval.retrievers.queries import Query

if TYPE_CHECKING:  # slow to import
    from reflectune.retrieval.retrievers.text_retriever import TextRetriever

Merge = Literal["concat", "in_turn", "rrf", "scores"]
OnFailure = Literal["stop", "degrade"]
"""Reaction to a failing knowledge base: `stop` raises, `degrade` finds nothing there and reports it."""
MERGES: Final[tuple[Merge, ...]] = ("concat", "in_turn", "rrf", "scores")
_RRF: Final = 60
"""k of reciprocal rank fusion, as Cormack et al. (SIGIR 2009) have it."""

Lists = Sequence[Sequence[PassageHit]]


class Searcher(Protocol):
    """A knowledge base that is searched with queries.

    Attributes:
        name: Name in results, budgets and errors.
    """

    name: str

    def search(self, queries: Sequence[Query], top: int) -> list[list[PassageHit]]:
        """For each query, in order, at most `top` passages, best first; `top` is at least 1."""
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
        """For each query the `top` passages that are nearest to its text, best first."""
        rankings = iter(self._retriever.search([query.text for query in queries if query.has_text], top))
        return [next(rankings) if query.has_text else [] for query in queries]


@dataclass(frozen=True)
class JointHits:
    """Hits of one query in all knowledge bases.

    Attributes:
        query: The query.
        hits: Hits by the searcher's name, in the order of searchers, each passage once, best first.
        merged: All hits, merged by the rule, each passage once, with new ranks.
        missing: Reason by the name of each searcher that failed; its hits are empty.
    """

    query: Query
    hits: Mapping[str, Sequence[PassageHit]]
    merged: Sequence[PassageHit]
    missing: Mapping[str, str] = field(default_factory=dict)


class JointSearch:
    """Search several knowledge bases at the same time.

    Results depend on queries and knowledge bases, never on which one answers first. A failing knowledge base ends the
    search with its name, since results without it would pass for complete; with `degrade` it is listed in `missing`.

    Args:
        searchers: One a knowledge base, in the order of merging.
        merge: Rule of merging; see `merge_hits`.
        parallel: Threads that share a searcher's queries, by name; 1 by default. More than 1 is for a searcher that
            waits for a server and allows several threads.
        on_failure: `degrade`: the queries of a failing searcher find nothing there.

    Raises:
        ValueError: No searcher is given, two have one name, or `parallel` has an unknown name or is less than 1.

    Example:
        >>> joint = JointSearch([Texts("wikipedia", texts), Summaries("pairs", retriever, knowledge)], merge="concat")
        >>> budgets = {"wikipedia": split_budget(20, 2), "pairs": split_budget(10, 2)}
        >>> record_query, trajectory_query = joint.search([Query(image, "…"), Query(image, "…")], budgets)
    """

    def __init__(
        self,
        searchers: Sequence[Searcher],
        *,
        merge: Merge = "in_turn",
        parallel: Mapping[str, int] | None = None,
        on_failure: OnFailure = "stop",
    ) -> None:
        self._on_failure = on_failure
        self.names = tuple(searcher.name for searcher in searchers)
        if not searchers or len(set(self.names)) != len(self.names):
            raise ValueError(f"searchers need names of their own, at least one; found {list(self.names)}")
        self._searchers, self._merge = tuple(searchers), _checked(merge)
        self._parallel = {**dict.fromkeys(self.names, 1), **(parallel or {})}
        if self._parallel.keys() != set(self.names) or min(self._parallel.values()) < 1:
            raise ValueError(f"`parallel` gives {dict(parallel or {})}, the searchers are {list(self.names)}")

    def search(self, queries: Sequence[Query], tops: Mapping[str, int | Sequence[int]]) -> list[JointHits]:
        """Return the hits of each query.

        Args:
            queries: Any number of queries, of any questions; each is searched independently.
            tops: Passages a query by each searcher's name: a number for all queries, or one for each; 0 skips it.

        Returns:
            The hits of each query, in order.

        Raises:
            ValueError: `tops` has other searchers or another number of queries, or is negative.
            UserError: A knowledge base fails, with `stop`; the first one is named.
        """
        budgets = {name: _budget(name, tops, len(queries)) for name in self.names}
        if tops.keys() != budgets.keys():
            raise ValueError(f"`tops` names {sorted(tops)}, the searchers are {sorted(budgets)}")
        hits_by_name: dict[str, list[list[PassageHit]]] = {name: [[] for _ in queries] for name in self.names}
        lanes = [
            _Lane(searcher, places)
            for searcher in self._searchers
            for places in _cut(budgets[searcher.name], self._parallel[searcher.name])
        ]
        missing: list[dict[str, str]] = [{} for _ in queries]
        for lane, future in zip(lanes, _run(lanes, queries, budgets), strict=True):
            try:
                lists = _result(lane, future)
            except UserError as error:
                if self._on_failure == "stop":
                    raise
                for place in lane.places:
                    missing[place][lane.searcher.name] = str(error)
                continue
            for place, hits in zip(lane.places, lists, strict=True):
                hits_by_name[lane.searcher.name][place] = _ranked(_once(hits))
        return [
            JointHits(query, lists_by_name, merge_hits(list(lists_by_name.values()), self._merge), missing[place])
            for place, query in enumerate(queries)
            for lists_by_name in [{name: lists[place] for name, lists in hits_by_name.items()}]
        ]

    def pool(self, results: Sequence[JointHits]) -> list[PassageHit]:
        """Merge the hits of several queries of one question by the same rule, in order of (searcher, query)."""
        return merge_hits([each.hits[name] for name in self.names for each in results], self._merge)


def merge_hits(lists: Lists, rule: Merge) -> list[PassageHit]:
    """Merge lists into one in which each passage of a knowledge base is once; ranks are counted again.

    Scores stay; a hit of several lists is taken from the first of them, with `scores` from the one that scores highest.

    Args:
        lists: Each best first.
        rule: `concat`: one list after the other. `in_turn`: the first of every list, then the second of every list, and
            so on. `rrf`: reciprocal rank fusion, the sum of 1 / (60 + rank) over the lists that have the passage, which
            is added to the hit's parts; for disjoint lists it equals `in_turn`. `scores`: by score, for comparable
            scores. Ties keep the order of lists.
    """
    rule = _checked(rule)
    if rule == "concat":
        hits = [hit for each in lists for hit in each]
    elif rule == "scores":
        hits = sorted((hit for each in lists for hit in each), key=lambda hit: -hit.score)
    else:
        hits = [hit for row in zip_longest(*lists) for hit in row if hit is not None]
    merged = _once(hits)
    if rule == "rrf":
        fused = _fused(lists)
        merged = [dataclasses.replace(hit, parts={**hit.parts, "rrf": fused[_key(hit)]}) for hit in merged]
        merged.sort(key=lambda hit: -hit.parts["rrf"])
    return _ranked(merged)


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


@dataclass(frozen=True)
class _Lane:
    """Queries, by their places, that one searcher is asked for by one thread."""

    searcher: Searcher
    places: Sequence[int]


def _run(
    lanes: Sequence[_Lane], queries: Sequence[Query], budgets: Mapping[str, Sequence[int]]
) -> list[Future[list[list[PassageHit]]]]:
    """Return the hits of each lane for its queries, after all have ended."""
    if not lanes:
        return []
    with ThreadPoolExecutor(len(lanes), thread_name_prefix="joint-search") as pool:
        return [pool.submit(_search, lane, queries, budgets[lane.searcher.name]) for lane in lanes]


def _search(lane: _Lane, queries: Sequence[Query], budget: Sequence[int]) -> list[list[PassageHit]]:
    """Return a lane's hits in the order of its queries; queries of one budget are searched together."""
    groups: dict[int, list[int]] = {}
    for place in lane.places:
        groups.setdefault(budget[place], []).append(place)
    hits_by_place: dict[int, list[PassageHit]] = {}
    for top, places in groups.items():
        lists = lane.searcher.search([queries[place] for place in places], top)
        if len(lists) != len(places):
            raise ValueError(f"it returned {len(lists)} lists of passages for {len(places)} queries")
        hits_by_place.update((place, list(hits[:top])) for place, hits in zip(places, lists, strict=True))
    return [hits_by_place[place] for place in lane.places]


def _result(lane: _Lane, future: Future[list[list[PassageHit]]]) -> list[list[PassageHit]]:
    try:
        return future.result()
    except UserError as error:
        raise UserError(f"searching the knowledge base `{lane.searcher.name}`: {error}") from error
    except Exception as error:
        cause = " ".join(str(error).split())
        raise UserError(
            f"searching the knowledge base `{lane.searcher.name}` failed ({type(error).__name__}: {cause}); see to it, "
            "or give it the budget 0"
        ) from error


def _budget(name: str, tops: Mapping[str, int | Sequence[int]], queries: int) -> list[int]:
    """Return the number of passages of each query."""
    top = tops.get(name, 0)
    budget = [top] * queries if isinstance(top, int) else list(top)
    if len(budget) != queries or min(budget, default=0) < 0:
        raise ValueError(f"`{name}` has the budget {top} for {queries} queries; give one number, or one for each query")
    return budget


def _cut(budget: Sequence[int], parts: int) -> list[list[int]]:
    """Split the indices of queries with a budget into at most `parts` runs of similar length."""
    places = [place for place, top in enumerate(budget) if top]
    runs, start = [], 0
    for size in split_budget(len(places), min(parts, len(places)) or 1):
        runs.append(places[start : start + size])
        start += size
    return [run for run in runs if run]


def _once(hits: Sequence[PassageHit]) -> list[PassageHit]:
    """Each passage of a knowledge base at its first place."""
    first: dict[tuple[str, str, str], PassageHit] = {}
    for hit in hits:
        first.setdefault(_key(hit), hit)
    return list(first.values())


def _ranked(hits: Sequence[PassageHit]) -> list[PassageHit]:
    return [dataclasses.replace(hit, rank=rank) for rank, hit in enumerate(hits, start=1)]


def _key(hit: PassageHit) -> tuple[str, str, str]:
    """Return the identity of a passage; two splits of one knowledge base have equal ids for different texts."""
    return hit.kb, hit.passage.id, hit.passage.text


def _fused(lists: Lists) -> dict[tuple[str, str, str], float]:
    """Return for each passage the sum of 1 / (60 + rank) over the lists that have it."""
    sums: dict[tuple[str, str, str], float] = {}
    for each in lists:
        for rank, hit in enumerate(_once(each), start=1):
            sums[_key(hit)] = sums.get(_key(hit), 0.0) + 1 / (_RRF + rank)
    return sums


def _checked(rule: Merge) -> Merge:
    if rule not in MERGES:
        raise ValueError(f"a rule of merging is one of {', '.join(MERGES)}, found {rule}")
    return rule

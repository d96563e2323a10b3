"""Measure retrieval from a config to printed tables: entries by images, passages by text."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple, TypeVar

from reflectune.core.types import Question
from reflectune.formats.dataset import Dataset
from reflectune.formats.hits import Hit
from reflectune.inference.running.config import RecallConfig
from reflectune.inference.running.planning import select
from reflectune.inference.scoring.recall import (
    Figures,
    Search,
    entry_tables,
    measure_entries,
    measure_passages,
    passage_tables,
)
from reflectune.retrieval.indexes.entry_index import load_index, open_encoder
from reflectune.retrieval.retrievers.entry_retriever import EntryRetriever
from reflectune.retrieval.retrievers.queries import Query, Weights, equation_3, equation_7
from reflectune.retrieval.retrievers.ranked_retriever import open_ranked
from reflectune.retrieval.retrievers.text_retriever import TextRetriever, open_text_retriever

AnyRetriever = TypeVar("AnyRetriever", EntryRetriever, TextRetriever)


def run(config: RecallConfig) -> Figures:
    """Search as configured, and print a table for each split.

    Returns:
        Figures of `measure_entries` by split. Searches are under `weights` and `text_weights`, and for an index of
        sections also under `section_weights`, where k counts sections; or under `ranked_entities`. Figures of
        `measure_passages` are under `passages`.

    Raises:
        UserError: There is nothing to measure, or an index can't be opened.
    """
    dataset = Dataset(Path(config.dataset))
    questions = select(dataset, config.splits, config.limit, config.seed)
    figures: Figures = {}
    for table in _search_tables(config, dataset):
        measured = measure_entries(
            dataset,
            questions,
            table.searches,
            config.depths,
            with_texts=table.with_texts,
            exact=table.exact,
            seed=config.seed,
        )
        print("\n".join(entry_tables(measured, table.head)))
        for split, record in measured.items():
            searches = record.pop("searches")
            figures[split] = {**record, **figures.get(split, {}), table.key: searches}
    if config.text_index:
        for split, record in _measure_passages(config, dataset, questions).items():
            figures.setdefault(split, {})["passages"] = record
    return figures


class _SearchTable(NamedTuple):
    """Searches whose figures share a table, by name.

    Attributes:
        key: Key of the figures.
        head: Head of the names' column.
        searches: Searches by name.
        exact: Exact searches of the same names to compare with; empty for no comparison.
        with_texts: True if they also search with questions' texts.
    """

    key: str
    head: str
    searches: Mapping[str, Search]
    exact: Mapping[str, Search] = MappingProxyType({})
    with_texts: bool = False


def _search_tables(config: RecallConfig, dataset: Dataset) -> Iterator[_SearchTable]:
    """Yield the configured searches of entries: by ranked entities, or through the index by its weights."""
    if config.ranked_entities:
        ranked = open_ranked(config.ranked_entities, dataset.knowledge, dataset.image_roots)
        yield _SearchTable("ranked_entities", "ranked_entities", {Path(config.ranked_entities).name: ranked.search})
    elif config.index:
        encoder = open_encoder(config.index, device=config.device)
        retriever = EntryRetriever(load_index(config.index, dataset.knowledge, encoder), encoder)
        twin = _exact_retriever(config, config.index, retriever)
        share = config.summary_share
        of_titles = {f"{weight:g}": equation_3(weight).with_summaries(share) for weight in config.title_weights}
        of_texts = {
            f"{weight:g}": equation_7(weight).with_summaries(share).fused(config.fusion)
            for weight in config.text_weights
        }
        yield _SearchTable("weights", "title_weight", _weighted(retriever, of_titles), _weighted(twin, of_titles))
        if of_texts:
            searches, exact = _weighted(retriever, of_texts), _weighted(twin, of_texts)
            yield _SearchTable("text_weights", "text_weight", searches, exact, with_texts=True)
        if of_texts and retriever.has_sections:
            searches = {name: functools.partial(_sections, retriever, value) for name, value in of_texts.items()}
            yield _SearchTable("section_weights", "text_weight, k sections", searches, with_texts=True)


def _sections(retriever: EntryRetriever, weights: Weights, queries: Sequence[Query], top: int) -> list[list[Hit]]:
    """Return the entries of the best sections, one per section, so that an entry may occur several times."""
    return [[hit for hit, _ in found] for found in retriever.search_sections(queries, top, weights=weights)]


def _weighted(retriever: EntryRetriever | None, weights: Mapping[str, Weights]) -> dict[str, Search]:
    if retriever is None:
        return {}
    return {name: functools.partial(retriever.search, weights=value) for name, value in weights.items()}


def _measure_passages(config: RecallConfig, dataset: Dataset, questions: Sequence[Question]) -> Figures:
    """Measure passages found by the questions' text, and print the tables."""
    knowledge = config.article_source(dataset)
    retriever = open_text_retriever(config.text_index, knowledge, device=config.device)
    twin = _exact_retriever(config, config.text_index, retriever)
    exact = twin.search if twin is not None else None
    figures = measure_passages(questions, knowledge, retriever.search, config.depths, exact=exact, seed=config.seed)
    print("\n".join(passage_tables(figures, config.text_index)))
    return figures


def _exact_retriever(config: RecallConfig, index: str, retriever: AnyRetriever) -> AnyRetriever | None:
    """Return an exact search of the same index for `overlap`; None without it, or if the index is exact itself."""
    if not config.overlap:
        return None
    twin = retriever.exactly()
    if twin is retriever:
        print(f"{index} is searched exactly: no overlap to report")
        return None
    return twin

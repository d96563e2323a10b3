"""Oracle settings: the gold article (as in the paper), or the gold passage, is given in place of retrieval."""

from __future__ import annotations

import random
from collections.abc import Callable, Container, Sequence
from functools import partial
from typing import Literal

from reflectune.core.images import Images
from reflectune.core.types import Passage, Question
from reflectune.formats.hits import Hit
from reflectune.formats.knowledge_base import KnowledgeBase
from reflectune.formats.passages import Lead, split_passages
from reflectune.inference.pipelines.base import Clock, Context, ContextPipeline
from reflectune.inference.pipelines.diagnostics import gold_passages
from reflectune.inference.pipelines.naive_rag import NaiveRagSettings, naive_rag
from reflectune.inference.pipelines.plain_reader import plain_reader
from reflectune.inference.pipelines.recipe import (
    PipelineParts,
    Recipe,
    baseline,
    needed,
    tuned,
    with_entry,
    with_evidence,
)
from reflectune.inference.pipelines.requirements import ENTRIES, RERANKER
from reflectune.inference.pipelines.settings import EntrySettings, LeadSettings
from reflectune.retrieval.contexts import ContextBuilder
from reflectune.retrieval.retrievers.queries import Query, Weights, image_queries

Given = Literal["article", "passage"]


class GoldRetriever:
    """Returns the gold entries of a query's question, with a retrieval score of 1, as in mR²AG's Table 1."""

    def search(self, queries: Sequence[Query], top_n: int, *, weights: Weights | None = None) -> list[list[Hit]]:
        """Return the gold entries of each query's question, at most `top_n`."""
        entries = [gold_entries(query.question)[:top_n] if query.question else [] for query in queries]
        return [
            [Hit(entry, score=1.0, rank=rank, query="gold") for rank, entry in enumerate(row, 1)] for row in entries
        ]


def gold_entries(question: Question) -> list[str]:
    """Return the entries of a question's evidence, or else the one that its image shows."""
    return list(dict.fromkeys([e.entry_id for e in question.evidence] or question.entity_ids[:1]))


def has_gold(question: Question, knowledge: Container[str]) -> bool:
    """Return True if the knowledge base has all of a question's `gold_entries`."""
    return all(entry in knowledge for entry in gold_entries(question))


def _passages(knowledge: KnowledgeBase, entry_ids: Sequence[str], lead: Lead) -> list[Passage]:
    return [passage for entry_id in entry_ids for passage in split_passages(knowledge.get(entry_id), lead=lead)]


def _oracle(given: Given) -> Callable[[str, LeadSettings, PipelineParts], ContextPipeline]:
    """Return the function that builds a pipeline which reads the gold article, or its evidence passages alone."""

    def make(name: str, settings: LeadSettings, parts: PipelineParts) -> ContextPipeline:
        def gold(question: Question) -> list[Passage]:
            passages = _passages(parts.knowledge, gold_entries(question), settings.lead)
            return passages if given == "article" else gold_passages(question, passages)

        def find(questions: Sequence[Question], images: Sequence[Images], clock: Clock) -> Context:
            return [()] * len(questions), [gold(question) for question in questions]

        return ContextPipeline(name, plain_reader(parts, settings.max_new_tokens), find)

    return make


def _among_others(name: str, settings: EntrySettings, parts: PipelineParts) -> ContextPipeline:
    """Return a pipeline that reads the gold article among the highest-ranked others, in a random order.

    This measures whether a reader finds the right article among several, independent of the retriever's misses.
    """
    retriever, top_n = needed(parts.retriever), settings.top_n

    def find(questions: Sequence[Question], images: Sequence[Images], clock: Clock) -> Context:
        gold = [gold_entries(question) for question in questions]
        with clock.step("retrieve"):
            queries = image_queries(questions, images)
            # always with the whole batch, since the last digits of an encoder's vectors depend on it
            by_count = {n: retriever.search(queries, top_n + n) for n in {len(entries) for entries in gold}}
        hits, passages = [], []
        for row, (question, entries) in enumerate(zip(questions, gold, strict=True)):
            found = by_count[len(entries)][row]
            others = [hit.entry_id for hit in found if hit.entry_id not in entries]
            chosen = [*entries, *others][: max(top_n, len(entries))]
            hits.append([hit for hit in found if hit.entry_id in chosen])
            drawn = random.Random(question.id).sample(chosen, len(chosen))
            passages.append(_passages(parts.knowledge, drawn, settings.lead))
        return hits, passages

    return ContextPipeline(name, plain_reader(parts, settings.max_new_tokens), find)


def _best_passages(name: str, settings: NaiveRagSettings, parts: PipelineParts) -> ContextPipeline:
    reader = plain_reader(parts, settings.max_new_tokens)
    contexts = ContextBuilder(parts.knowledge, parts.reranker, settings.top_n, settings.passages, settings.lead)
    return naive_rag(name, reader, GoldRetriever(), contexts, "passages")


_ORACLE = partial(Recipe, model="base_model", takes=with_entry, reads_gold=True, form="oracle")
_ARTICLE = _ORACLE(_oracle("article"), LeadSettings, title="Oracle, right article", reads="article")
_ARTICLES = _ORACLE(
    _among_others, EntrySettings, requires=(ENTRIES,), title="Oracle, right article among {top_n}", reads="articles"
)
_PASSAGES = _ORACLE(
    _best_passages,
    NaiveRagSettings,
    requires=(RERANKER,),
    title="Oracle, {passages} passages of the right article",
    form="oracle_passages",
    reads="passages",
)
RECIPES = {
    **baseline("oracle_article", _ARTICLE),
    **baseline("oracle_articles", _ARTICLES),
    "oracle_passages": _PASSAGES,  # LLaVA-SFR with oracle entries
    "oracle_passages_tuned": tuned(_PASSAGES, "oracle_passages_tuned"),
    "oracle_passage": _ORACLE(_oracle("passage"), LeadSettings, takes=with_evidence, title="Oracle, right passage"),
}

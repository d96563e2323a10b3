"""Oracle settings: the gold article (as in the paper), or the gold passage, is given in place of retrieval."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Container, Sequence
from functools import partial
from typing import Literal

from PIL import Image

from reflectune.core.images import Images, first_images
from reflectune.core.types import Passage, Question
from reflectune.formats.hits import Hit
from reflectune.formats.knowledge_base import KnowledgeBase
from reflectune.formats.passages import Lead, split_passages
from reflectune.inference.pipelines.base import Clock, Context, ContextPipeline, Pipeline
from reflectune.inference.pipelines.diagnostics import gold_passages
from reflectune.inference.pipelines.naive_rag import NaiveRagSettings, naive_rag
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
from reflectune.inference.reading.reader import Reader
from reflectune.inference.trace import Trace
from reflectune.retrieval.contexts import ContextBuilder

Given = Literal["article", "passage"]


class GoldRetriever:
    """Returns for each image the entries of its question, with a retrieval score of 1.

    A retriever sees images alone, so `expect` registers their questions first.
    """

    def __init__(self) -> None:
        """Start without questions."""
        self._expected: dict[int, tuple[Image.Image, Question]] = {}

    def expect(self, questions: Sequence[Question], images: Sequence[Image.Image]) -> None:
        """Register the question of each image, replacing earlier ones."""
        self._expected = {id(image): (image, question) for question, image in zip(questions, images, strict=True)}

    def search(self, images: Sequence[Image.Image], top_n: int) -> list[list[Hit]]:
        """Return the gold entries of each image's question, at most `top_n`."""
        entries = [gold_entries(self._expected[id(image)][1])[:top_n] for image in images]
        return [
            [Hit(entry, score=1.0, rank=rank, query="gold") for rank, entry in enumerate(row, 1)] for row in entries
        ]


class WithGoldEntries:
    """A pipeline over the gold entries in place of the retrieved ones, as in mR²AG's Table 1.

    Args:
        name: Name of its traces.
        build: Builds the pipeline over a retriever.
    """

    def __init__(self, name: str, build: Callable[[GoldRetriever], Pipeline]) -> None:
        self.name, self._retriever = name, GoldRetriever()
        self._pipeline = build(self._retriever)

    def run(self, questions: Sequence[Question], images: Sequence[Images]) -> list[Trace]:
        """Return one trace per question, in order."""
        self._retriever.expect(questions, first_images(images))
        return [dataclasses.replace(trace, pipeline=self.name) for trace in self._pipeline.run(questions, images)]


def gold_entries(question: Question) -> list[str]:
    """Return the entries of a question's evidence, or else the one that its image shows."""
    return list(dict.fromkeys([e.entry_id for e in question.evidence] or question.entity_ids[:1]))


def has_gold(question: Question, knowledge: Container[str]) -> bool:
    """Return True if the knowledge base has all of a question's `gold_entries`."""
    return all(entry in knowledge for entry in gold_entries(question))


def _passages(knowledge: KnowledgeBase, entry_ids: Sequence[str], lead: Lead) -> list[Passage]:
    return [passage for entry_id in entry_ids for passage in split_passages(knowledge.get(entry_id), lead=lead)]


def _oracle(given: Given) -> Callable[[str, LeadSettings, PipelineParts], ContextPipeline]:
    """Return the maker of a pipeline that reads the right article, whole, or its evidence passage."""

    def make(name: str, settings: LeadSettings, parts: PipelineParts) -> ContextPipeline:
        def gold(question: Question) -> list[Passage]:
            passages = _passages(parts.knowledge, gold_entries(question), settings.lead)
            return passages if given == "article" else gold_passages(question, passages)

        def find(questions: Sequence[Question], images: Sequence[Images], clock: Clock) -> Context:
            return [()] * len(questions), [gold(question) for question in questions]

        return ContextPipeline(name, Reader(needed(parts.engine), settings.max_new_tokens), find)

    return make


def _among_others(name: str, settings: EntrySettings, parts: PipelineParts) -> ContextPipeline:
    """Return a pipeline that reads the gold article among the highest-ranked others, in a random order.

    This measures whether a reader finds the right article among several, independently of the retriever's misses.
    All images are searched for each number of gold entries, since an encoder's last digits depend on the batch.
    """
    retriever, top_n = needed(parts.retriever), settings.top_n

    def find(questions: Sequence[Question], images: Sequence[Images], clock: Clock) -> Context:
        gold = [gold_entries(question) for question in questions]
        with clock.step("retrieve"):
            by_count = {n: retriever.search(first_images(images), top_n + n) for n in {len(first) for first in gold}}
        hits, passages = [], []
        for row, (question, first) in enumerate(zip(questions, gold, strict=True)):
            found = by_count[len(first)][row]
            chosen = [*first, *(hit.entry_id for hit in found if hit.entry_id not in first)][: max(top_n, len(first))]
            hits.append([hit for hit in found if hit.entry_id in chosen])
            drawn = random.Random(question.id).sample(chosen, len(chosen))
            passages.append(_passages(parts.knowledge, drawn, settings.lead))
        return hits, passages

    return ContextPipeline(name, Reader(needed(parts.engine), settings.max_new_tokens), find)


def _best_passages(name: str, settings: NaiveRagSettings, parts: PipelineParts) -> WithGoldEntries:
    reader = Reader(needed(parts.engine), settings.max_new_tokens)
    contexts = ContextBuilder(parts.knowledge, parts.reranker, settings.top_n, settings.passages, settings.lead)
    return WithGoldEntries(name, lambda gold: naive_rag(name, reader, gold, contexts, "passages"))


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

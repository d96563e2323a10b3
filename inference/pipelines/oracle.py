"""Oracle settings: the gold article (as in the paper), or the gold passage, is given in place of retrieval."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Container, Sequence
from functools import partial
from typing import TYPE_CHECKING, Literal

from PIL import Image

from reflectune.core.images import Images, first_images
from reflectune.core.types import Passage, Question
from reflectune.formats.hits import Hit
from reflectune.formats.knowledge_base import KnowledgeBase
from reflectune.formats.passages import Lead, split_passages
from reflectune.inference.pipelines.base import Clock, Pipeline, answer_with_context
from reflectune.inference.pipelines.diagnostics import gold_passages
from reflectune.inference.pipelines.naive_rag import NaiveRAG, NaiveRagSettings
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

if TYPE_CHECKING:  # slow to import
    from reflectune.retrieval.retrievers.entry_retriever import Retriever

Given = Literal["article", "passage"]


class Oracle:
    """Answers from the right article, whole, or from its evidence passage.

    Args:
        name: Name of its traces.
        reader: The model: the base, or one that was fine-tuned without reflection.
        given: The article or the passage.
        lead: Text before each passage.
    """

    def __init__(
        self, name: str, reader: Reader, knowledge: KnowledgeBase, given: Given, *, lead: Lead = "first_sentence"
    ) -> None:
        self.name = name
        self._reader, self._knowledge, self._given, self._lead = reader, knowledge, given, lead

    def run(self, questions: Sequence[Question], images: Sequence[Images]) -> list[Trace]:
        """Return one trace per question, in order. A question needs entity ids (`article`) or evidence (`passage`)."""
        passages = [self._gold(question) for question in questions]
        hits: list[tuple[()]] = [()] * len(questions)
        return answer_with_context(
            self.name, self._reader, questions, images, hits=hits, passages=passages, clock=Clock()
        )

    def _gold(self, question: Question) -> list[Passage]:
        passages = _passages(self._knowledge, gold_entries(question), self._lead)
        return passages if self._given == "article" else gold_passages(question, passages)


class OracleAmongOthers:
    """Answers from the gold article among the highest-ranked others, in an order drawn by the question's id.

    This measures whether a reader finds the right article among several, independently of the retriever's misses.

    Args:
        name: Name of its traces.
        retriever: Finds the other entries.
        top_n: Number of entries to read, the gold one included.
        lead: Text before each passage.
    """

    def __init__(
        self,
        name: str,
        reader: Reader,
        retriever: Retriever,
        knowledge: KnowledgeBase,
        *,
        top_n: int = 5,
        lead: Lead = "first_sentence",
    ) -> None:
        self.name, self._reader, self._retriever, self._knowledge = name, reader, retriever, knowledge
        self._top_n, self._lead = top_n, lead

    def run(self, questions: Sequence[Question], images: Sequence[Images]) -> list[Trace]:
        """Return one trace per question with an entry, in order."""
        clock = Clock()
        gold = [gold_entries(question) for question in questions]
        with clock.step("retrieve"):
            hits = self._hits(first_images(images), [len(first) for first in gold])
        entries = []
        for question, first, row in zip(questions, gold, hits, strict=True):
            others = [hit.entry_id for hit in row if hit.entry_id not in first]
            chosen = [*first, *others][: max(self._top_n, len(first))]
            entries.append(random.Random(question.id).sample(chosen, len(chosen)))
        passages = [_passages(self._knowledge, row, self._lead) for row in entries]
        read = [[hit for hit in row if hit.entry_id in ids] for row, ids in zip(hits, entries, strict=True)]
        return answer_with_context(
            self.name, self._reader, questions, images, hits=read, passages=passages, clock=clock
        )

    def _hits(self, images: Sequence[Image.Image], gold: Sequence[int]) -> list[list[Hit]]:
        """Find for each image `top_n` entries and as many more as its question has gold ones.

        All images are searched for each count, since an encoder's last digits depend on the batch.
        """
        by_count = {count: self._retriever.search(images, self._top_n + count) for count in dict.fromkeys(gold)}
        return [by_count[count][row] for row, count in enumerate(gold)]


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


def _oracle(given: Given) -> Callable[[str, LeadSettings, PipelineParts], Oracle]:
    return lambda name, settings, parts: Oracle(
        name, Reader(needed(parts.engine), settings.max_new_tokens), parts.knowledge, given, lead=settings.lead
    )


def _among_others(name: str, settings: EntrySettings, parts: PipelineParts) -> OracleAmongOthers:
    reader, retriever = Reader(needed(parts.engine), settings.max_new_tokens), needed(parts.retriever)
    return OracleAmongOthers(name, reader, retriever, parts.knowledge, top_n=settings.top_n, lead=settings.lead)


def _best_passages(name: str, settings: NaiveRagSettings, parts: PipelineParts) -> WithGoldEntries:
    reader = Reader(needed(parts.engine), settings.max_new_tokens)
    contexts = ContextBuilder(parts.knowledge, parts.reranker, settings.top_n, settings.passages, settings.lead)
    return WithGoldEntries(name, lambda gold: NaiveRAG(name, reader, gold, contexts, "passages"))


_ORACLE = partial(Recipe, model="base_model", takes=with_entry, reads_gold=True, form="oracle", takes_images=True)
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

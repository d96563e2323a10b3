"""Naive mRAG (§3.1 of mR²AG): put what was retrieved before the question, and answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from PIL import Image

from reflectune.core.types import Question
from reflectune.inference.pipelines.base import Clock
from reflectune.inference.pipelines.with_context import answer_with_context
from reflectune.inference.reader import Reader
from reflectune.inference.trace import Trace
from reflectune.retrieval.knowledge_base import KnowledgeBase
from reflectune.retrieval.passages import Lead, split_passages
from reflectune.retrieval.rerankers.words import best_by_words
from reflectune.retrieval.retriever import Retriever

Form = Literal["article", "passages"]


class NaiveRAG:
    """Answers from what was retrieved, without judging it.

    Two forms, of which a fair comparison takes the better: `article` reads the whole first entry; `passages` reads the
    `top_n` passages of the `top_n` entries that share most with the question's words (BM25).
    """

    def __init__(
        self,
        reader: Reader,
        retriever: Retriever,
        knowledge: KnowledgeBase,
        form: Form,
        *,
        top_n: int = 5,
        lead: Lead = "first_sentence",
    ) -> None:
        """Bind the base model, the retriever and the entries; choose the form."""
        self.name = f"naive_rag_{form}"
        self._reader, self._retriever, self._knowledge = reader, retriever, knowledge
        self._form, self._top_n, self._lead = form, top_n, lead

    def run(self, questions: Sequence[Question], images: Sequence[Image.Image]) -> list[Trace]:
        """One trace per question, in order."""
        clock = Clock()
        with clock.step("retrieve"):
            hits = self._retriever.search(images, self._top_n)
            entries = [[self._knowledge.get(hit.entry_id) for hit in own] for own in hits]
        kept = entries if self._form == "passages" else [own[:1] for own in entries]
        passages = [[p for entry in own for p in split_passages(entry, lead=self._lead)] for own in kept]
        if self._form == "passages":
            passages = [
                best_by_words(question.text, own, self._top_n)
                for question, own in zip(questions, passages, strict=True)
            ]
        return answer_with_context(self.name, self._reader, questions, images, hits, passages, clock)

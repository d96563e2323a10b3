"""Naive mRAG (§3.1 of mR²AG): put what was retrieved before the question, and answer."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from typing import Literal

from PIL import Image

from reflectune.core.types import Passage, Question
from reflectune.inference.pipelines.base import Clock
from reflectune.inference.pipelines.with_context import answer_with_context
from reflectune.inference.reader import Reader
from reflectune.inference.trace import Trace
from reflectune.retrieval.knowledge_base import KnowledgeBase
from reflectune.retrieval.passages import Lead, split_passages
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


def best_by_words(question: str, passages: Sequence[Passage], top_n: int) -> list[Passage]:
    """The passages with the highest BM25 against the question, among these passages; ties keep their order.

    BM25 with k1 = 1.5 and b = 0.75 over heading and text, its document frequencies counted in `passages`.
    """
    documents = [Counter(_words(f"{passage.heading} {passage.text}")) for passage in passages]
    if not documents:
        return []
    mean_length = sum(document.total() for document in documents) / len(documents)
    wanted = set(_words(question))
    rarity = {word: _rarity(sum(word in document for document in documents), len(documents)) for word in wanted}

    def score(document: Counter[str]) -> float:
        norm = 1.5 * (0.25 + 0.75 * document.total() / max(mean_length, 1.0))
        return sum(rarity[word] * document[word] * 2.5 / (document[word] + norm) for word in wanted if word in document)

    scores = [score(document) for document in documents]
    order = sorted(range(len(passages)), key=lambda i: (-scores[i], i))
    return [passages[i] for i in order[:top_n]]


def _rarity(holding: int, documents: int) -> float:
    return math.log(1 + (documents - holding + 0.5) / (holding + 0.5))


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())

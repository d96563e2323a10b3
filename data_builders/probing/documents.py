"""Documents to probe a question with: passages of retrieved entries or of its own, and of random ones."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Final

from PIL import Image

from reflectune.core.errors import UserError
from reflectune.core.images_ahead import Prepare
from reflectune.core.types import Passage, Question
from reflectune.data_builders.probing.config import DocumentSettings
from reflectune.formats.hits import Hit
from reflectune.formats.knowledge_base import KnowledgeBase
from reflectune.formats.passages import split_passages
from reflectune.retrieval.contexts import Document, find_documents
from reflectune.retrieval.rerankers.base import Reranker
from reflectune.retrieval.retrievers.entry_retriever import Retriever, search_preparers
from reflectune.retrieval.retrievers.queries import image_queries

_TRIES: Final = 10
"""Maximum random entries drawn per passage: an entry may have no text."""


class DocumentSource:
    """Finds the documents of questions.

    MMKB-RAG takes passages of the retrieved entries. For a model that can't tell entities apart, use the question's own
    entry and random ones instead, like mR²AG with `negatives_retrieved: 0`.

    Args:
        knowledge: The knowledge base.
        retriever: Finds entries by an image; None takes the question's own.
        settings: Number and kind of documents.
        seed: Seed of the random ones.
        reranker: Ranks passages; None: BM25.
    """

    def __init__(
        self,
        knowledge: KnowledgeBase,
        retriever: Retriever | None,
        settings: DocumentSettings,
        seed: int,
        reranker: Reranker | None = None,
    ) -> None:
        self._reranker = reranker
        self._knowledge, self._retriever, self._settings, self._seed = knowledge, retriever, settings, seed
        self._passages: Callable[[str], list[Passage]] = lru_cache(maxsize=8192)(
            lambda entry_id: split_passages(knowledge.get(entry_id), lead=settings.lead)
        )

    def preparers(self) -> list[Prepare]:
        """Return the functions that make an image ready for the search."""
        return search_preparers(self._retriever)

    def check(self, question: Question) -> None:
        """Refuse a question whose own entry is needed and missing.

        Raises:
            UserError: The knowledge base lacks an entry of the question.
        """
        for entry_id in () if self._retriever else question.entity_ids:
            if entry_id not in self._knowledge:
                raise UserError(f"its entry {entry_id} is not in the knowledge base {self._knowledge.folder}")

    def find(self, questions: Sequence[Question], images: Sequence[Image.Image]) -> list[list[Document]]:
        """Return the documents of questions that pass `check`, in the reranker's order; random ones last.

        A document's score is its entry's S_ret, or without retrieval 1 for the question's own entry; 0 if random.
        """
        if not questions:
            return []
        if self._retriever:
            hits = self._retriever.search(image_queries(questions, images), self._settings.top_n)
        else:
            names = [dict.fromkeys(question.entity_ids) for question in questions]
            hits = [[Hit(name, 1.0, rank) for rank, name in enumerate(row, start=1)] for row in names]
        texts = [question.text for question in questions]
        found = find_documents(texts, hits, self._passages, self._settings.documents, self._reranker)
        if not self._retriever:
            found = [[dataclasses.replace(document, found="") for document in row] for row in found]
        return [[*documents, *self._random(q, documents)] for q, documents in zip(questions, found, strict=True)]

    def _random(self, question: Question, documents: Sequence[Document]) -> list[Document]:
        """Return the best passage of each random entry."""
        rng = random.Random(f"{self._seed}:{question.id}")
        taken = {*question.entity_ids, *(document.passage.entry_id for document in documents)}
        drawn: list[Document] = []
        for _ in range(_TRIES * self._settings.documents_random):
            if len(drawn) == self._settings.documents_random:
                break
            entry_id = self._knowledge.id_at(rng.randrange(len(self._knowledge)))
            if entry_id in taken:
                continue
            taken.add(entry_id)
            (best,) = find_documents([question.text], [[Hit(entry_id, 0.0, 1)]], self._passages, 1, self._reranker)
            drawn += [Document(found.passage, found.score, len(documents) + len(drawn) + 1) for found in best]
        return drawn

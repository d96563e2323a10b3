"""Which documents a question is asked with: passages of what is retrieved, or of its own entry, and random ones."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Final

from PIL import Image

from reflectune.core.errors import UserError
from reflectune.core.types import Passage, Question
from reflectune.data_builders.probing.config import ProbeConfig
from reflectune.formats.dataset import Dataset
from reflectune.formats.hits import Hit
from reflectune.formats.knowledge_base import KnowledgeBase
from reflectune.formats.passages import split_passages
from reflectune.retrieval.contexts import Document, find_documents
from reflectune.retrieval.retrievers.entry_retriever import Retriever, open_retriever

_TRIES: Final = 10
"""Entries drawn at random for each passage that is wanted, before there are fewer: one may have no text."""


class DocumentSource:
    """Finds the documents of questions.

    MMKB-RAG takes those of the retrieved entries. A model that can't see whose entry it reads learns nothing from a
    look-alike's passage, which differs from evidence by nothing that it sees: then take the question's own entry's
    passages and random ones, as mR²AG's `negatives_retrieved: 0` does.

    Args:
        knowledge: The entries.
        retriever: Finds them by a picture; None takes the question's own.
        config: How many of which.
    """

    def __init__(self, knowledge: KnowledgeBase, retriever: Retriever | None, config: ProbeConfig) -> None:
        self._knowledge, self._retriever, self._config = knowledge, retriever, config
        self._passages: Callable[[str], list[Passage]] = lru_cache(maxsize=8192)(self._split)

    def check(self, question: Question) -> None:
        """Refuse a question whose own documents are wanted and can't be had.

        Raises:
            UserError: The knowledge base lacks an entry of it.
        """
        for entry_id in () if self._retriever else question.entity_ids:
            if entry_id not in self._knowledge:
                raise UserError(f"its entry {entry_id} is not in the knowledge base {self._knowledge.folder}")

    def find(self, questions: Sequence[Question], images: Sequence[Image.Image]) -> list[list[Document]]:
        """The documents of questions that pass `check`: those that share most words with it first, random ones last.

        Their scores are their entries' S_ret; of entries that nothing retrieved, 1 for the question's own and 0 for
        random ones.
        """
        if not questions:
            return []
        if self._retriever:
            hits = self._retriever.search(list(images), self._config.top_n)
        else:
            hits = [[Hit(name, 1.0, rank) for rank, name in enumerate(q.entity_ids, start=1)] for q in questions]
        found = (
            find_documents(question.text, row, self._passages, self._config.documents)
            for question, row in zip(questions, hits, strict=True)
        )
        return [[*documents, *self._random(q, documents)] for q, documents in zip(questions, found, strict=True)]

    def _random(self, question: Question, documents: Sequence[Document]) -> list[Document]:
        """Of each drawn entry the passage that shares most words with the question; never of the question's own."""
        rng = random.Random(f"{self._config.seed}:{question.id}")
        taken = {*question.entity_ids, *(document.passage.entry_id for document in documents)}
        drawn: list[Document] = []
        for _ in range(_TRIES * self._config.documents_random):
            if len(drawn) == self._config.documents_random:
                break
            entry_id = self._knowledge.id_at(rng.randrange(len(self._knowledge)))
            if entry_id in taken:
                continue
            taken.add(entry_id)
            best = find_documents(question.text, [Hit(entry_id, 0.0, 1)], self._passages, 1)
            drawn += [Document(one.passage, one.score, len(documents) + len(drawn) + 1) for one in best]
        return drawn

    def _split(self, entry_id: str) -> list[Passage]:
        return split_passages(self._knowledge.get(entry_id), lead=self._config.lead)


def document_source(config: ProbeConfig, dataset: Dataset, device: str) -> DocumentSource:
    """As a config says; whatever retrieves runs on the device."""
    retriever = None
    if config.documents_of == "retrieved":
        retriever = open_retriever(config, dataset.knowledge, image_roots=dataset.image_roots, device=device)
    return DocumentSource(dataset.knowledge, retriever, config)

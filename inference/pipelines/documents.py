"""Find the documents of MMKB-RAG: passages of the retrieved entries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from PIL import Image

from reflectune.core.config import setting
from reflectune.core.errors import UserError
from reflectune.core.types import Passage, Question
from reflectune.formats.hits import Hit
from reflectune.formats.knowledge_base import KnowledgeBase
from reflectune.formats.passages import split_passages
from reflectune.inference.pipelines.settings import EntrySettings
from reflectune.inference.reading.ranking import entry_scores
from reflectune.inference.trace import PassageTrace
from reflectune.retrieval.contexts import find_documents
from reflectune.retrieval.rerankers.base import Reranker
from reflectune.retrieval.rerankers.config import DOCUMENTS_BY, DocumentRanking
from reflectune.retrieval.rerankers.words import WordReranker
from reflectune.retrieval.retrievers.queries import image_queries

if TYPE_CHECKING:  # slow to import
    from reflectune.retrieval.retrievers.entry_retriever import Retriever


@dataclass(frozen=True)
class FoundDocuments:
    """Retrieval results of a question: entries, best first, and documents in the retriever's order."""

    hits: tuple[Hit, ...] = ()
    documents: tuple[Passage, ...] = ()

    def traces(self, scores: Sequence[float | None], s_ret_temperature: float = 0.0) -> tuple[PassageTrace, ...]:
        """Return the documents with S_ret of their entries (`entry_scores`) and these scores of SRT, in order."""
        s_ret = entry_scores(self.hits, s_ret_temperature)
        return tuple(
            PassageTrace(document, s_ret=s_ret[document.entry_id], s_rel=s, s_irr=None if s is None else 1.0 - s)
            for document, s in zip(self.documents, scores, strict=True)
        )


class DocumentFinderSettings(EntrySettings):
    """Settings of the documents of a question."""

    documents: int = setting(10, "MMKB-RAG: passages of the entries to take, the best by documents_by", ge=1)
    documents_by: DocumentRanking = setting("words", DOCUMENTS_BY)


class DocumentFinder:
    """Finds the documents as probing does: the best passages of the entries most similar to the image.

    Args:
        retriever: Finds entries for an image; equation 3 of mR²AG.
        settings: Numbers of entries to retrieve and of their passages to take, which is k of MMKB-RAG's equation 6.
        reranker: Ranks the passages with `documents_by: reranker`.

    Raises:
        UserError: A reranker is needed, and the command opens none.
    """

    def __init__(
        self,
        retriever: Retriever,
        knowledge: KnowledgeBase,
        settings: DocumentFinderSettings,
        reranker: Reranker | None = None,
    ) -> None:
        self._retriever, self._knowledge, self._settings = retriever, knowledge, settings
        self._reranker = reranker if settings.documents_by == "reranker" else WordReranker()
        if self._reranker is None:
            raise UserError("`documents_by: reranker` works in `probe`, `evaluate` and `sweep`; set `words` here")

    def find(self, questions: Sequence[Question], images: Sequence[Image.Image]) -> list[FoundDocuments]:
        """Find the documents of each question, in order."""
        hits = self._retriever.search(image_queries(questions, images), self._settings.top_n) if questions else []
        texts = [question.text for question in questions]
        found = find_documents(texts, hits, self._passages, self._settings.documents, self._reranker)
        return [
            FoundDocuments(tuple(question_hits), tuple(document.passage for document in documents))
            for question_hits, documents in zip(hits, found, strict=True)
        ]

    def _passages(self, entry_id: str) -> list[Passage]:
        return split_passages(self._knowledge.get(entry_id), lead=self._settings.lead)

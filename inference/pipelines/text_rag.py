"""Naive RAG over texts: answer from the passages nearest to the question's text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from reflectune.core.images import Images
from reflectune.core.types import Question
from reflectune.formats.hits import Hit, PassageHit
from reflectune.inference.pipelines.base import Clock, answer_with_context
from reflectune.inference.pipelines.recipe import PipelineParts, Recipe, knowledge_based, needed, tuned
from reflectune.inference.pipelines.requirements import TEXTS
from reflectune.inference.pipelines.settings import LeadSettings, PickingSettings
from reflectune.inference.reading.reader import Reader
from reflectune.inference.trace import Trace

if TYPE_CHECKING:  # slow to import
    from reflectune.retrieval.retrievers.text_retriever import TextRetriever


class TextRAG:
    """Answers from passages of a text knowledge base, found by the question's text without its image.

    Args:
        name: Name of its traces.
        reader: The model: the base, or one that was fine-tuned on such contexts (scheme `plain`).
        retriever: Finds passages for a text.
        passages: Number of passages to read.
    """

    def __init__(self, name: str, reader: Reader, retriever: TextRetriever, passages: int) -> None:
        self.name = name
        self._reader, self._retriever, self._passages = reader, retriever, passages

    def run(self, questions: Sequence[Question], images: Sequence[Images]) -> list[Trace]:
        """Return one trace per question, in order."""
        clock = Clock()
        with clock.step("retrieve"):
            found = self._retriever.search([question.text for question in questions], self._passages)
        passages = [[hit.passage for hit in hits] for hits in found]
        return answer_with_context(
            self.name,
            self._reader,
            questions,
            images,
            hits=[entries(hits) for hits in found],
            passages=passages,
            clock=clock,
        )


def entries(hits: Sequence[PassageHit]) -> list[Hit]:
    """Return the entries of passages, each by its best passage, best first."""
    best: dict[str, PassageHit] = {}
    for hit in hits:
        best.setdefault(hit.passage.entry_id, hit)
    return [
        Hit(name, hit.score, rank, query="question", kb=hit.kb, parts={"text": hit.score})
        for rank, (name, hit) in enumerate(best.items(), start=1)
    ]


class TextRagSettings(PickingSettings, LeadSettings):
    """Settings of naive RAG over texts."""


def _make(name: str, settings: TextRagSettings, parts: PipelineParts) -> TextRAG:
    reader = Reader(needed(parts.engine), settings.max_new_tokens)
    return TextRAG(name, reader, needed(parts.texts), settings.passages)


_RECIPE = Recipe(
    _make,
    TextRagSettings,
    "base_model",
    knowledge_based,
    requires=(TEXTS,),
    title="Text RAG, {passages} passages",
    form="text_rag",
    has_own_depth=True,
    takes_images=True,
)
RECIPES = {
    "text_rag": _RECIPE,
    "text_rag_tuned": tuned(_RECIPE, "text_rag_tuned", reads="passages"),
}

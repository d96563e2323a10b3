"""Naive RAG over texts: answer from the passages nearest to the question's text."""

from __future__ import annotations

from collections.abc import Sequence

from reflectune.core.images import Images
from reflectune.core.types import Question
from reflectune.formats.hits import Hit, PassageHit
from reflectune.inference.pipelines.base import Clock, Context, ContextPipeline
from reflectune.inference.pipelines.plain_reader import plain_reader
from reflectune.inference.pipelines.recipe import PipelineParts, Recipe, knowledge_based, needed, tuned
from reflectune.inference.pipelines.requirements import TEXTS
from reflectune.inference.pipelines.settings import LeadSettings, PickingSettings


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


def _make(name: str, settings: TextRagSettings, parts: PipelineParts) -> ContextPipeline:
    retriever = needed(parts.texts)

    def find(questions: Sequence[Question], images: Sequence[Images], clock: Clock) -> Context:
        with clock.step("retrieve"):
            found = retriever.search([question.text for question in questions], settings.passages)
        return [*map(entries, found)], [[hit.passage for hit in hits] for hits in found]

    return ContextPipeline(name, plain_reader(parts, settings.max_new_tokens), find)


_RECIPE = Recipe(
    _make,
    TextRagSettings,
    "base_model",
    knowledge_based,
    requires=(TEXTS,),
    title="Text RAG, {passages} passages",
    form="text_rag",
    has_own_depth=True,
)
RECIPES = {
    "text_rag": _RECIPE,
    "text_rag_tuned": tuned(_RECIPE, "text_rag_tuned", reads="passages"),
}

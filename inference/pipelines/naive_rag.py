"""Naive mRAG (§3 of mR²AG): answer from the retrieved passages and the question."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from reflectune.core.images import Images, first_images
from reflectune.core.types import Question
from reflectune.inference.pipelines.base import Clock, Context, ContextPipeline, PlainReader
from reflectune.inference.pipelines.plain_reader import plain_reader
from reflectune.inference.pipelines.recipe import PipelineParts, Recipe, baseline, knowledge_based, needed
from reflectune.inference.pipelines.requirements import ENTRIES, RERANKER
from reflectune.inference.pipelines.settings import EntrySettings, PickingSettings
from reflectune.retrieval.contexts import CONTEXT_FORMS, PICKED, ContextBuilder, ContextForm
from reflectune.retrieval.retrievers.queries import image_queries

if TYPE_CHECKING:  # slow to import
    from reflectune.retrieval.retrievers.entry_retriever import Retriever


def naive_rag(
    name: str, reader: PlainReader, retriever: Retriever, contexts: ContextBuilder, form: ContextForm
) -> ContextPipeline:
    """Return a pipeline that answers from a context of the retrieved entries, without judging them."""

    def find(questions: Sequence[Question], images: Sequence[Images], clock: Clock) -> Context:
        with clock.step("retrieve"):
            hits = retriever.search(image_queries(questions, images), contexts.top_n)
        with clock.step("rank"):
            return hits, contexts.build(form, [question.text for question in questions], hits, first_images(images))

    return ContextPipeline(name, reader, find)


class NaiveRagSettings(PickingSettings, EntrySettings):
    """Settings of naive RAG over picked passages."""


_READ = {
    "article": "first article",
    "articles": "{top_n} articles",
    "passage": "best passage",
    "passages": "{passages} passages",
}


def _recipe(form: ContextForm) -> Recipe[Any]:
    def make(name: str, settings: EntrySettings, parts: PipelineParts) -> ContextPipeline:
        passages = settings.passages if isinstance(settings, NaiveRagSettings) else 0
        contexts = ContextBuilder(parts.knowledge, parts.reranker, settings.top_n, passages, settings.lead)
        reader = plain_reader(parts, settings.max_new_tokens)
        return naive_rag(name, reader, needed(parts.retriever), contexts, form)

    return Recipe(
        make,
        NaiveRagSettings if form == "passages" else EntrySettings,
        "base_model",
        knowledge_based,
        requires=(ENTRIES, RERANKER) if form in PICKED else (ENTRIES,),
        title=f"Naive RAG, {_READ[form]}",
        form="naive_rag",
        reads=form,
    )


RECIPES = {
    name: recipe for form in CONTEXT_FORMS for name, recipe in baseline(f"naive_rag_{form}", _recipe(form)).items()
}

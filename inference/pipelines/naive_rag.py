"""Naive mRAG (§3 of mR²AG): answer from the retrieved passages and the question."""

from __future__ import annotations

from collections.abc import Sequence

from PIL import Image

from reflectune.core.types import Question
from reflectune.inference.pipelines.base import Clock
from reflectune.inference.pipelines.recipe import PipelineParts, Recipe, baseline, knowledge_based, needed
from reflectune.inference.pipelines.with_context import answer_with_context
from reflectune.inference.reading.reader import Reader
from reflectune.inference.trace import Trace
from reflectune.retrieval.contexts import CONTEXT_FORMS, ContextBuilder, ContextForm
from reflectune.retrieval.retrievers.entry_retriever import Retriever


class NaiveRAG:
    """Answers from the retrieved passages, without judging them.

    Args:
        name: Name of its traces.
        reader: The model: the base, or one that was fine-tuned on such contexts (scheme `plain`).
        retriever: Finds entries for an image.
        contexts: Builds the context of each question from the entries.
        form: Form of the context; see `ContextBuilder.build`.
    """

    def __init__(
        self, name: str, reader: Reader, retriever: Retriever, contexts: ContextBuilder, form: ContextForm
    ) -> None:
        self.name = name
        self._reader, self._retriever, self._contexts, self._form = reader, retriever, contexts, form

    def run(self, questions: Sequence[Question], images: Sequence[Image.Image]) -> list[Trace]:
        """Return one trace per question, in order."""
        clock = Clock()
        with clock.step("retrieve"):
            hits = self._retriever.search(images, self._contexts.top_n)
        with clock.step("rank"):
            passages = self._contexts.build(self._form, [question.text for question in questions], hits, images)
        return answer_with_context(self.name, self._reader, questions, images, hits, passages, clock)


RERANKING = (
    "passages",
    "reranker",
    "reranker_model",
    "reranker_pooling",
    "reranker_similarity",
    "reranker_query_prefix",
    "reranker_passage_prefix",
    "reranker_max_length",
    "reranker_dtype",
)


def _recipe(form: ContextForm) -> Recipe:
    def make(name: str, parts: PipelineParts) -> NaiveRAG:
        config = parts.config
        contexts = ContextBuilder(parts.knowledge, parts.reranker, config.top_n, config.passages, config.lead)
        reader = Reader(needed(parts.engine), config.max_new_tokens)
        return NaiveRAG(name, reader, needed(parts.retriever), contexts, form)

    reranks = form == "passages"
    settings = ("top_n", *(RERANKING if reranks else ()))
    return Recipe(make, "base_model", True, knowledge_based, settings, form="naive_rag", reranks=reranks)


RECIPES = {
    name: recipe for form in CONTEXT_FORMS for name, recipe in baseline(f"naive_rag_{form}", _recipe(form)).items()
}

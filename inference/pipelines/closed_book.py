"""Closed book: the model alone answers from image and question."""

from __future__ import annotations

from collections.abc import Sequence

from reflectune.core.images import Images
from reflectune.core.types import Question
from reflectune.inference.pipelines.base import Clock, Context, ContextPipeline
from reflectune.inference.pipelines.plain_reader import plain_reader
from reflectune.inference.pipelines.recipe import PipelineParts, Recipe, baseline, every
from reflectune.inference.pipelines.settings import AnswerSettings


def _make(name: str, settings: AnswerSettings, parts: PipelineParts) -> ContextPipeline:
    def find(questions: Sequence[Question], images: Sequence[Images], clock: Clock) -> Context:
        return [()] * len(questions), [()] * len(questions)

    return ContextPipeline(name, plain_reader(parts, settings.max_new_tokens), find)


RECIPES = baseline(
    "closed_book",
    Recipe(
        _make,
        AnswerSettings,
        "base_model",
        every,
        title="Closed book",
        form="closed_book",
        reads="none",
    ),
)

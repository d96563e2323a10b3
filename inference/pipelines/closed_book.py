"""Closed book: the model alone answers from image and question."""

from __future__ import annotations

from collections.abc import Sequence

from reflectune.core.images import Images
from reflectune.core.types import Question
from reflectune.inference.pipelines.base import Clock
from reflectune.inference.pipelines.recipe import PipelineParts, Recipe, baseline, every, needed
from reflectune.inference.pipelines.settings import AnswerSettings
from reflectune.inference.reading.reader import Reader
from reflectune.inference.trace import Trace


class ClosedBook:
    """Answers from the image and the model's own knowledge.

    Args:
        name: Name of its traces.
        reader: The model: the base, or one that was fine-tuned without reflection (LLaVA-FT).
    """

    def __init__(self, name: str, reader: Reader) -> None:
        self.name, self._reader = name, reader

    def run(self, questions: Sequence[Question], images: Sequence[Images]) -> list[Trace]:
        """Return one trace per question, in order."""
        clock = Clock()
        with clock.step("answer"):
            answers = self._reader.answer_plainly(questions, images, [()] * len(questions))
        return [
            Trace(
                question_id=question.id,
                pipeline=self.name,
                answer=answer.text,
                confidence=answer.score,
                cut=answer.cut,
                seconds=clock.share(len(questions)),
                tokens=answer.usage,
            )
            for question, answer in zip(questions, answers, strict=True)
        ]


def _make(name: str, settings: AnswerSettings, parts: PipelineParts) -> ClosedBook:
    return ClosedBook(name, Reader(needed(parts.engine), settings.max_new_tokens))


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
        takes_images=True,
    ),
)

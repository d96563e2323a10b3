"""Scripted teacher of ProMSA in a model's place."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Final

from reflectune.core.images import Images
from reflectune.core.types import Question
from reflectune.examples.lessons.teacher import TrajectoryTeacher
from reflectune.inference.operators.requests import Prompt, WriteReply, WriteRequest
from reflectune.inference.operators.trajectory import TrajectoryResult
from reflectune.inference.operators.vocabulary import Steps, relayed

_QUESTION_ID: Final = "question_id"
"""Name of a text of a prompt that no template shows."""


class ScriptedAgent:
    """A model whose replies are those of each question's teacher.

    Args:
        teachers: Teachers by question id.
    """

    def __init__(self, teachers: Mapping[str, TrajectoryTeacher]) -> None:
        self._teachers = teachers

    def named(self, question: Question, steps: Steps[TrajectoryResult]) -> Steps[TrajectoryResult]:
        """Run a trajectory with the question's id in each prompt."""

        def relay(request: Any) -> Steps[Any]:
            if isinstance(request, WriteRequest):
                texts = {**request.prompt.texts, _QUESTION_ID: question.id}
                request = dataclasses.replace(request, prompt=dataclasses.replace(request.prompt, texts=texts))
            return (yield request)

        return relayed(steps, relay)

    def write(self, prompts: Sequence[tuple[Images, Prompt]], max_tokens: int) -> list[WriteReply]:
        """Return the teachers' replies."""
        return [WriteReply(self._teachers[prompt.texts[_QUESTION_ID]].action(prompt.rounds)) for _, prompt in prompts]

    def judge(self, *_: Any) -> Any:
        """Refuse: an agent judges nothing."""
        raise ValueError("a scripted agent judges nothing")

    judge_each = judge

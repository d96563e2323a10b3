"""Scripted teacher of ProMSA in a model's place."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Final

from reflectune.core.types import Question
from reflectune.examples.lessons.teacher import TrajectoryTeacher
from reflectune.inference.operators.requests import Picture, Prompt, StepReply, WriteReply, WriteRequest
from reflectune.inference.operators.trajectory import TrajectoryResult
from reflectune.inference.operators.vocabulary import Steps

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
        reply: StepReply | None = None
        while True:
            try:
                request = next(steps) if reply is None else steps.send(reply)
            except StopIteration as ended:
                outcome: TrajectoryResult = ended.value
                return outcome
            if isinstance(request, WriteRequest):
                texts = {**request.prompt.texts, _QUESTION_ID: question.id}
                request = dataclasses.replace(request, prompt=dataclasses.replace(request.prompt, texts=texts))
            reply = yield request

    def write(self, prompts: Sequence[tuple[Picture, Prompt]], max_tokens: int) -> list[WriteReply]:
        """Return the teachers' replies."""
        return [WriteReply(self._teachers[prompt.texts[_QUESTION_ID]].action(prompt.rounds)) for _, prompt in prompts]

    def judge(self, *_: Any) -> Any:
        """Refuse: an agent judges nothing."""
        raise NotImplementedError

    judge_each = judge

"""Rewards of a reply: the official metric of its answer, and its format."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from reflectune.core.types import Question
from reflectune.metrics.scoring.registry import AnswerMetric

Reward = Callable[..., list[float | None]]
"""TRL's reward function: takes keyword arguments such as `completions`, and returns a number for each reply."""

_FORMAT: Final = re.compile(r"\s*<think>(?P<thoughts>.*)</think>\s*<answer>(?P<answer>.*)</answer>\s*", re.DOTALL)
_TAGS: Final = re.compile(r"</?(?:think|answer)>")


def keeps_format(reply: str) -> bool:
    """Return True if a reply is `<think>…</think><answer>…</answer>` alone, each tag once, with an answer.

    Example:
        >>> keeps_format("<think>It is old.</think> <answer>1603</answer>"), keeps_format("<answer>1603</answer>")
        (True, False)
    """
    match = _FORMAT.fullmatch(reply)
    return match is not None and len(_TAGS.findall(reply)) == 4 and bool(match["answer"].strip())


def reward_functions(
    questions: Mapping[str, Question], correctness: AnswerMetric, read_answer: Callable[[str], str]
) -> list[Reward]:
    """Return TRL's reward functions: accuracy, then format. Rows have the column `question_id`.

    Args:
        questions: Questions by id.
        correctness: Scores an answer from 0 to 1 by the data set's metric.
        read_answer: Reads the answer from a reply, as the pipeline does.
    """

    def accuracy(completions: Sequence[Any], question_id: Sequence[str], **_: Any) -> list[float | None]:
        answers = [read_answer(text) for text in map(text_of, completions)]
        return [float(correctness(text, questions[key])) for text, key in zip(answers, question_id, strict=True)]

    def format_kept(completions: Sequence[Any], **_: Any) -> list[float | None]:
        return [float(keeps_format(text)) for text in map(text_of, completions)]

    return [accuracy, format_kept]


def text_of(completion: Sequence[Mapping[str, str]]) -> str:
    """Return the text of a reply, which TRL gives as a conversation of one turn."""
    return completion[-1]["content"]

"""What a reply is worth: whether its answer is right by the official metric, and whether it keeps the format."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from reflectune.core.types import Question
from reflectune.metrics.scoring.registry import Worth

Reward = Callable[..., list[float | None]]
"""As TRL calls one: keyword arguments, one of them `completions`; a number for each reply."""

_FORMAT: Final = re.compile(r"\s*<think>(?P<thoughts>.*)</think>\s*<answer>(?P<answer>.*)</answer>\s*", re.DOTALL)
_TAGS: Final = re.compile(r"</?(?:think|answer)>")


def keeps_format(reply: str) -> bool:
    """Whether a reply is `<think>…</think><answer>…</answer>` and nothing else, each tag once, an answer inside.

    Example:
        >>> keeps_format("<think>It is old.</think> <answer>1603</answer>"), keeps_format("<answer>1603</answer>")
        (True, False)
    """
    match = _FORMAT.fullmatch(reply)
    return match is not None and len(_TAGS.findall(reply)) == 4 and bool(match["answer"].strip())


def reward_functions(
    questions: Mapping[str, Question], correctness: Worth, read_answer: Callable[[str], str]
) -> list[Reward]:
    """TRL's reward functions: accuracy first, format second. Rows have the column `question_id`.

    Args:
        questions: By id.
        correctness: What an answer is worth, from 0 to 1, by the data set's metric.
        read_answer: Reads a reply's answer, as the pipeline does.
    """

    def accuracy(completions: Sequence[Any], question_id: Sequence[str], **_: Any) -> list[float | None]:
        asked = [questions[each] for each in question_id]
        answers = [read_answer(text) for text in map(text_of, completions)]
        return [float(correctness(answer, each)) for answer, each in zip(answers, asked, strict=True)]

    def format_kept(completions: Sequence[Any], **_: Any) -> list[float | None]:
        return [float(keeps_format(text)) for text in map(text_of, completions)]

    return [accuracy, format_kept]


def text_of(completion: Sequence[Mapping[str, str]]) -> str:
    """The words of a reply, which TRL hands over as a conversation of one turn."""
    return completion[-1]["content"]

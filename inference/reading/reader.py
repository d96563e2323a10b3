"""A model as a baseline sees it: an answer from image, question and passages, without reflection."""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from PIL import Image

from reflectune.core.types import Passage, Question
from reflectune.models.prefix.engine import Branches, Generation, PrefixEngine, Prefixes
from reflectune.models.rendering.renderer import Rendered

T = TypeVar("T")


@dataclass(frozen=True)
class Answer:
    """An answer read from the model.

    Attributes:
        text: The answer without reflection tokens, stripped.
        score: S_ans, equation 7: geometric mean probability of its tokens and the end token.
        tokens: Number of tokens generated.
        passages_read: How many of the passages given were read.
    """

    text: str
    score: float
    tokens: int
    passages_read: int = 0


@dataclass(frozen=True)
class Opened:
    """A batch of questions whose images and prefixes have been read, once.

    Attributes:
        questions: The questions.
        prefixes: The engine's state.
        lengths: Length of each prefix in tokens.
    """

    questions: Sequence[Question]
    prefixes: Prefixes
    lengths: Sequence[int]


class Reader:
    """One loaded model with its engine, asked plainly: closed book, naive RAG, oracle."""

    def __init__(self, engine: PrefixEngine, max_new_tokens: int) -> None:
        """Bind the engine, and the longest answer in tokens."""
        self._engine, self._renderer = engine, engine.renderer
        self._max_new_tokens = max_new_tokens

    def answer_plainly(
        self, questions: Sequence[Question], images: Sequence[Image.Image], contexts: Sequence[Sequence[Passage]]
    ) -> list[Answer]:
        """Answer in one turn from the image, the question and the passages given; no reflection.

        Of each question's passages the leading ones are read, as many as the model's context holds whole.
        """
        fitted = [self._fit(*each) for each in zip(questions, images, contexts, strict=True)]
        prefixes = self._engine.read([rendered for _, rendered in fitted])
        answers = self._generate(prefixes, [(i, 0) for i in range(len(questions))], [])
        return [
            dataclasses.replace(answer, passages_read=count) for answer, (count, _) in zip(answers, fitted, strict=True)
        ]

    def _fit(self, question: Question, image: Image.Image, passages: Sequence[Passage]) -> tuple[int, Rendered]:
        """How many leading passages leave room for an answer, and the prompt with them."""
        room = self._engine.max_length - self._max_new_tokens
        return fit_leading(
            lambda count: self._renderer.plain(question.text, image, passages[:count], question.answer_style),
            len(passages),
            room,
            length=lambda rendered: len(rendered.ids),
        )

    def _generate(
        self, state: Prefixes | Branches, rows: Sequence[tuple[int, int]], forced: Sequence[int]
    ) -> list[Answer]:
        if not rows:
            return []
        generations: list[Generation] = self._engine.generate(
            state, rows=list(rows), forced=list(forced), max_new_tokens=self._max_new_tokens
        )
        return [Answer(self._renderer.strip(g.text), g.score, len(g.token_ids)) for g in generations]


def fit_leading(
    render: Callable[[int], T], passages: int, room: int, *, least: int = 0, length: Callable[[Any], int] = len
) -> tuple[int, T]:
    """How many leading passages a prompt has room for, and that prompt.

    Args:
        render: The prompt with so many leading passages; one more makes it no shorter.
        passages: How many there are.
        room: Most tokens of the prompt.
        least: How many stay in the prompt even if they don't fit.
        length: Tokens of a prompt.
    """
    whole = render(passages)
    if passages <= least or length(whole) <= room:
        return passages, whole
    fitting = bisect.bisect_right(range(least + 1, passages), room, key=lambda count: length(render(count)))
    return least + fitting, render(least + fitting)


def share(yes: float, no: float) -> float:
    """The first of two probabilities as a share of both, which is the softmax of their two logits; 0 if neither is."""
    return yes / (yes + no) if yes + no > 0 else 0.0

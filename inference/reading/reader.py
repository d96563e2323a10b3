"""Reader of plain models: an answer from image, question and passages, without reflection."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from PIL import Image

from reflectune.core.images import Images
from reflectune.core.types import Passage, Question
from reflectune.models.rendering.renderer import Rendered, Renderer
from reflectune.models.rendering.thoughts import thought_tokens, without_thoughts
from reflectune.models.rendering.turns import fit_leading
from reflectune.models.schemes.base import Scheme

if TYPE_CHECKING:  # slow to import
    from reflectune.models.prefix.interface import Engine, ReadBranches, ReadPrefixes
    from reflectune.models.prefix.state import Generation


@dataclass(frozen=True)
class ReaderAnswer:
    """An answer of a model.

    Attributes:
        text: The answer without reflection tokens and thoughts, stripped.
        score: S_ans, equation 7: geometric mean probability of its tokens and the end token, given any thoughts; 0 if
            the reply was truncated inside the thoughts.
        tokens: Number of tokens generated, thoughts included.
        passages_read: Number of the given passages that were read.
        read: Tokens of the prompt, for answers in one turn.
        cut: True if it was truncated at the maximum length.
        error: Reason why the model could not answer; "" if it could.
    """

    text: str
    score: float
    tokens: int
    passages_read: int = 0
    read: int = 0
    cut: bool = False
    error: str = ""

    @classmethod
    def of(cls, generation: Generation, renderer: Renderer, passages_read: int = 0) -> ReaderAnswer:
        """Parse the answer in a generation."""
        ids = generation.token_ids
        text = without_thoughts(generation.text)
        thoughts = 0 if text == generation.text else thought_tokens(ids, renderer.decode)
        score, cut = generation.score_after(thoughts), not generation.finished
        return cls(renderer.strip(text), score, len(ids), passages_read, cut=cut)

    @property
    def usage(self) -> Mapping[str, int]:
        """Cost of a one-turn answer."""
        return {"calls": 1, "read": self.read, "computed": self.read, "generated": self.tokens}


USAGE = ("calls", "read", "computed", "generated")


class Usage:
    """Costs of each question of a batch, by its position.

    `calls` counts prompts. `read` counts the tokens of all prompts, each from its start, as separate calls would read
    them. `computed` counts a question's shared prefix once. `generated` counts generated tokens. Counts don't depend on
    the batch: they ignore recomputation after memory shortage, and images shared between questions.
    """

    def __init__(self) -> None:
        """Start with zero counts."""
        self._counts: dict[int, Counter[str]] = {}

    def add(self, row: int, **counts: int) -> None:
        """Add to a question's counts, named as in `USAGE`."""
        self._counts.setdefault(row, Counter()).update(counts)

    def branch(self, row: int, prefix: int, tokens: int, generated: int = 0) -> None:
        """Count a prompt of `tokens` tokens after a prefix already read, and its reply."""
        self.add(row, calls=1, read=prefix + tokens, computed=tokens, generated=generated)

    def of(self, row: int) -> Mapping[str, int]:
        """Return a question's counts, for its trace."""
        counts = self._counts.get(row, Counter())
        return {name: counts[name] for name in USAGE}


@dataclass(frozen=True)
class OpenedQuestions:
    """A batch of questions whose images and prefixes have been read, once.

    Attributes:
        questions: The questions.
        prefixes: The engine's state.
        lengths: Length of each prefix in tokens.
        usage: Counts of each question.
    """

    questions: Sequence[Question]
    prefixes: ReadPrefixes
    lengths: Sequence[int]
    usage: Usage = field(default_factory=Usage)

    @classmethod
    def read(
        cls, engine: Engine, scheme: Scheme, questions: Sequence[Question], images: Sequence[Image.Image]
    ) -> OpenedQuestions:
        """Read images and questions up to the scheme's first branch: one vision and one prefix pass a question."""
        prefixes = [scheme.open(engine.renderer, q.text, image) for q, image in zip(questions, images, strict=True)]
        opened = cls(questions, engine.read(prefixes), [len(prefix.ids) for prefix in prefixes])
        for row, length in enumerate(opened.lengths):
            opened.usage.add(row, computed=length)
        return opened


class Reader:
    """A loaded model that answers without reflection: closed book, naive RAG, oracle."""

    def __init__(self, engine: Engine, max_new_tokens: int) -> None:
        """Bind the engine; set the maximum length of an answer in tokens."""
        self._engine, self._renderer = engine, engine.renderer
        self._max_new_tokens = max_new_tokens

    def answer_plainly(
        self, questions: Sequence[Question], images: Sequence[Images], contexts: Sequence[Sequence[Passage]]
    ) -> list[ReaderAnswer]:
        """Answer in one turn from the images, the question and the passages, without reflection.

        The leading passages that fit the model's context whole are read.
        """
        fitted = [
            self._fit(question, image, passages)
            for question, image, passages in zip(questions, images, contexts, strict=True)
        ]
        prefixes = self._engine.read([rendered for _, rendered in fitted])
        answers = self._generate(prefixes, [(i, 0) for i in range(len(questions))], [])
        return [
            dataclasses.replace(answer, passages_read=count, read=len(rendered.ids))
            for answer, (count, rendered) in zip(answers, fitted, strict=True)
        ]

    def _fit(self, question: Question, image: Images, passages: Sequence[Passage]) -> tuple[int, Rendered]:
        """Return the number of leading passages that leave room for an answer, and the prompt with them."""
        room = self._engine.max_length - self._max_new_tokens
        return fit_leading(
            lambda count: self._renderer.plain(question.text, image, passages[:count], question.answer_style),
            len(passages),
            room,
            length=lambda rendered: len(rendered.ids),
        )

    def _generate(
        self, state: ReadPrefixes | ReadBranches, rows: Sequence[tuple[int, int]], forced: Sequence[int]
    ) -> list[ReaderAnswer]:
        if not rows:
            return []
        generations: list[Generation] = self._engine.generate(
            state, rows=list(rows), forced=list(forced), max_new_tokens=self._max_new_tokens
        )
        self._engine.check_numbers(*(generation.score for generation in generations))
        return [ReaderAnswer.of(generation, self._renderer) for generation in generations]


def calibrated(engine: Engine, gate: str, probability: float) -> float:
    """Return a gate's probability, scaled if the engine has a calibration of the gate."""
    scaling = engine.calibration.get(gate)
    return probability if scaling is None else float(scaling.apply(probability))


def share(yes: float, no: float) -> float:
    """Return yes / (yes + no), which is the softmax of the two logits; 0 if both are 0."""
    return yes / (yes + no) if yes + no > 0 else 0.0

"""A model as a pipeline sees it: open questions, read the gate, judge passages, answer; over the shared prefix."""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from PIL import Image

from reflectune.core.types import Passage, Question
from reflectune.models.prefix.engine import Branches, Generation, PrefixEngine, Prefixes
from reflectune.models.rendering import Rendered


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


@dataclass(frozen=True)
class Judged:
    """Passages read on top of opened questions.

    Attributes:
        branches: The engine's state.
        passages: Per question, the passages that were read: all that the model's context holds.
        relevance: Per question and passage: p([Relevant]) (S_rel, equation 6) and p([Irrelevant]), full softmax.
    """

    branches: Branches
    passages: list[list[Passage]]
    relevance: list[list[tuple[float, float]]]


class Reader:
    """One loaded model with its engine."""

    def __init__(self, engine: PrefixEngine, max_new_tokens: int) -> None:
        """Bind the engine, and the longest answer in tokens."""
        self._engine, self._renderer = engine, engine.renderer
        self._max_new_tokens = max_new_tokens

    # A plain model: closed book, naive RAG, oracle.

    def answer_plainly(
        self, questions: Sequence[Question], images: Sequence[Image.Image], contexts: Sequence[Sequence[Passage]]
    ) -> list[Answer]:
        """Answer in one turn from the image, the question and the passages given; no reflection.

        Of each question's passages the leading ones are read, as many as the model's context holds whole.
        """
        fitted = [self._fit(*each) for each in zip(questions, images, contexts, strict=True)]
        prefixes = self._engine.read([rendered for rendered, _ in fitted])
        answers = self._generate(prefixes, [(i, 0) for i in range(len(questions))], [])
        return [
            dataclasses.replace(answer, passages_read=count) for answer, (_, count) in zip(answers, fitted, strict=True)
        ]

    def _fit(self, question: Question, image: Image.Image, passages: Sequence[Passage]) -> tuple[Rendered, int]:
        """The longest prompt of leading passages that leaves room for an answer, and how many passages it has."""
        room = self._engine.max_length - self._max_new_tokens

        def render(count: int) -> Rendered:
            return self._renderer.plain(question.text, image, passages[:count], question.answer_style)

        whole = render(len(passages))
        if len(whole.ids) <= room:
            return whole, len(passages)
        fitting = bisect.bisect_right(range(len(passages)), room, key=lambda count: len(render(count).ids)) - 1
        return render(max(0, fitting)), max(0, fitting)

    # A model with reflection tokens: mR²AG.

    def open(self, questions: Sequence[Question], images: Sequence[Image.Image]) -> Opened:
        """Read images and questions up to where the gate speaks: one vision and one prefix pass a question."""
        rendered = [self._renderer.prefix(q.text, image) for q, image in zip(questions, images, strict=True)]
        return Opened(questions, self._engine.read(rendered), [len(each.ids) for each in rendered])

    def gates(self, opened: Opened) -> list[float]:
        """P([Retrieval]) / (P([Retrieval]) + P([No Retrieval])) of each question, after equation 1."""
        both = opened.prefixes.probabilities(self._ids("retrieve", "no_retrieve")).tolist()
        return [share(yes, no) for yes, no in both]

    def answer_directly(self, opened: Opened, rows: Sequence[int]) -> list[Answer]:
        """Answer these questions after [No Retrieval], equation 2, asked for a short answer as after a passage."""
        if not rows:
            return []
        wanted = set(rows)
        branches = [
            [self._renderer.direct_branch(question.answer_style)] if row in wanted else []
            for row, question in enumerate(opened.questions)
        ]
        state = self._engine.branch(opened.prefixes, branches)
        return self._generate(state, [(row, 0) for row in rows], [])

    def judge(self, opened: Opened, passages: Sequence[Sequence[Passage]]) -> Judged:
        """Read each question's passages after [Retrieval], all in one batch; a question may have none.

        A passage that the model's context does not hold with its question and an answer is left out, never cut.
        """
        room = self._engine.max_length - self._max_new_tokens - 1  # one for [Relevant]
        kept: list[list[Passage]] = []
        branches: list[list[list[int]]] = []
        for question, length, own in zip(opened.questions, opened.lengths, passages, strict=True):
            ids = [self._renderer.passage_branch(passage, question.answer_style) for passage in own]
            fitting = [k for k, branch in enumerate(ids) if length + len(branch) <= room]
            kept.append([own[k] for k in fitting])
            branches.append([ids[k] for k in fitting])
        state = self._engine.branch(opened.prefixes, branches)
        found = state.probabilities(self._ids("relevant", "irrelevant"))
        return Judged(state, kept, [[(yes, no) for yes, no in own.tolist()] for own in found])

    def answer_from(self, judged: Judged, rows: Sequence[tuple[int, int]]) -> list[Answer]:
        """Answer from passages, given as (question, passage) positions, after [Relevant], equation 5."""
        return self._generate(judged.branches, rows, self._ids("relevant"))

    def _ids(self, *roles: str) -> list[int]:
        return [self._renderer.token_id(role) for role in roles]

    def _generate(
        self, state: Prefixes | Branches, rows: Sequence[tuple[int, int]], forced: Sequence[int]
    ) -> list[Answer]:
        if not rows:
            return []
        generations: list[Generation] = self._engine.generate(
            state, rows=list(rows), forced=list(forced), max_new_tokens=self._max_new_tokens
        )
        return [Answer(self._renderer.strip(g.text), g.score, len(g.token_ids)) for g in generations]


class UnjudgingReader(Reader):
    """Reads passages as `Reader` does, but S_rel is 1 for all: each is answered from, and no product depends on it."""

    def judge(self, opened: Opened, passages: Sequence[Sequence[Passage]]) -> Judged:
        """As `Reader.judge`, with p([Relevant]) = 1."""
        judged = super().judge(opened, passages)
        return dataclasses.replace(judged, relevance=[[(1.0, 0.0)] * len(own) for own in judged.passages])


def share(yes: float, no: float) -> float:
    """The first of two probabilities as a share of both, which is the softmax of their two logits; 0 if neither is."""
    return yes / (yes + no) if yes + no > 0 else 0.0

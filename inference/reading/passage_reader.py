"""Reader of models that reflect turn by turn: read the gate, judge passages, answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from PIL import Image

from reflectune.core.types import Passage, Question
from reflectune.inference.reading.reader import OpenedQuestions, Reader, ReaderAnswer, Usage, calibrated, share
from reflectune.models.schemes.passages import PassageScheme

if TYPE_CHECKING:  # slow to import
    from reflectune.models.prefix.interface import Engine, ReadBranches


@dataclass(frozen=True)
class JudgedPassages:
    """Passages read on top of opened questions.

    Attributes:
        branches: The engine's state.
        passages: Passages of each question that fit the model's context.
        relevance: For each of them p([Relevant]) (S_rel, equation 6) and p([Irrelevant]) in the full softmax.
        usage: Counts of each question.
    """

    branches: ReadBranches
    passages: list[list[Passage]]
    relevance: list[list[tuple[float, float]]]
    usage: Usage = field(default_factory=Usage)


class PassageReader(Reader):
    """A loaded model of a `PassageScheme` with its engine, over the shared prefix of a question."""

    def __init__(self, engine: Engine, max_new_tokens: int) -> None:
        """Bind the engine; set the maximum length of an answer in tokens."""
        super().__init__(engine, max_new_tokens)
        self.scheme = PassageScheme.of(engine.renderer)

    def open(self, questions: Sequence[Question], images: Sequence[Image.Image]) -> OpenedQuestions:
        """Read images and questions up to the gate."""
        return OpenedQuestions.read(self._engine, self.scheme, questions, images)

    def gates(self, opened: OpenedQuestions) -> list[float]:
        """Compute P([Retrieval]) / (P([Retrieval]) + P([No Retrieval])) of each question, after equation 1."""
        pairs = opened.prefixes.probabilities(self._renderer.ids_of("retrieve", "no_retrieve")).tolist()
        for row, length in enumerate(opened.lengths):
            opened.usage.branch(row, length, 0)
        return [calibrated(self._engine, self.scheme.gates[0].name, share(yes, no)) for yes, no in pairs]

    def answer_directly(self, opened: OpenedQuestions, rows: Sequence[int]) -> list[ReaderAnswer]:
        """Answer the questions at these positions after [No Retrieval], equation 2."""
        if not rows:
            return []
        selected = set(rows)
        branches = [
            [self.scheme.direct_branch(self._renderer, question.answer_style)] if row in selected else []
            for row, question in enumerate(opened.questions)
        ]
        state = self._engine.branch(opened.prefixes, branches)
        answers = self._generate(state, [(row, 0) for row in rows], [])
        for row, answer in zip(rows, answers, strict=True):
            opened.usage.branch(row, opened.lengths[row], len(branches[row][0]), answer.tokens)
        return answers

    def judge(self, opened: OpenedQuestions, passages: Sequence[Sequence[Passage]]) -> JudgedPassages:
        """Read each question's passages after [Retrieval], all in one batch; a question may have none.

        A passage that doesn't fit the context together with its question and an answer is left out, never truncated.
        """
        room = self._engine.max_length - self._max_new_tokens - 1  # one for [Relevant]
        read: list[list[Passage]] = []
        branches: list[list[list[int]]] = []
        for question, length, question_passages in zip(opened.questions, opened.lengths, passages, strict=True):
            ids = [
                self.scheme.passage_branch(self._renderer, passage, question.answer_style)
                for passage in question_passages
            ]
            fitting = [k for k, branch in enumerate(ids) if length + len(branch) <= room]
            read.append([question_passages[k] for k in fitting])
            branches.append([ids[k] for k in fitting])
        state = self._engine.branch(opened.prefixes, branches)
        probabilities = state.probabilities(self._renderer.ids_of("relevant", "irrelevant"))
        for row, (length, question_branches) in enumerate(zip(opened.lengths, branches, strict=True)):
            for branch in question_branches:
                opened.usage.branch(row, length, len(branch))
        gate = self.scheme.gates[1].name
        relevance = [[(yes, no) for yes, no in question_pairs.tolist()] for question_pairs in probabilities]
        if gate in self._engine.calibration:
            scaled = [[calibrated(self._engine, gate, yes) for yes, _ in pairs] for pairs in relevance]
            relevance = [[(yes, 1.0 - yes) for yes in question_scaled] for question_scaled in scaled]
        return JudgedPassages(state, read, relevance, opened.usage)

    def answer_from(self, judged: JudgedPassages, rows: Sequence[tuple[int, int]]) -> list[ReaderAnswer]:
        """Answer from passages, given as (question, passage) positions, after [Relevant], equation 5.

        Each continues the branch that judged its passage.
        """
        forced = self._renderer.ids_of("relevant")
        answers = self._generate(judged.branches, rows, forced)
        for (row, _), answer in zip(rows, answers, strict=True):
            judged.usage.add(row, computed=len(forced), generated=answer.tokens)
        return answers

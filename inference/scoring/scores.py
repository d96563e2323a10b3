"""Score traces by the data set's metric: selected questions, worth of answers, and intervals."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import compress
from typing import Any

import numpy as np

from reflectune.core.types import Metric, Question
from reflectune.inference.pipelines.registry import reflecting
from reflectune.inference.reading.ranking import choice_weights
from reflectune.inference.trace import TextlessTrace
from reflectune.inference.trace_files.columns import StoredTraces
from reflectune.metrics.judging.bem import Bem
from reflectune.metrics.reporting import breakdown as tables
from reflectune.metrics.reporting.breakdown import CAPTIONS, OVERALL, Column, Score
from reflectune.metrics.scoring.registry import has_truth, is_scored, is_two_hop
from reflectune.metrics.scoring.scoring import Answered, score_answers

Traces = Mapping[str, StoredTraces]
"""By pipeline or stage, then by question id."""


def traces_of_reflecting(traces: Traces, measured_by: str = "") -> StoredTraces:
    """Return the traces of the run's reflecting pipeline; {} without one.

    Args:
        traces: By pipeline, then by question id.
        measured_by: Select a pipeline whose decisions this stage measures; any if "".
    """
    return next((traces[name] for name in reflecting(measured_by) if name in traces), {})


class TraceScorer:
    """A scorer of traces by a metric: worth of answers, scored questions, and columns of tables.

    An answer that is too long for BEM is wrong; its question's id is in `too_long`.
    """

    def __init__(self, metric: Metric, bem: Bem | None = None) -> None:
        """Bind the metric; `evqa` needs the answer-equivalence model."""
        self.metric, self.bem = metric, bem
        self.too_long: dict[str, None] = {}
        self._known: dict[tuple[str, str], float] = {}

    def read(self, questions: Sequence[Question], traces: Iterable[Mapping[str, TextlessTrace]]) -> None:
        """Score all answers of some traces by BEM in batches, which is much faster than one by one.

        Args:
            traces: Mappings of traces by question id.
        """
        if self.metric != "evqa":
            return
        scorable = {question.id: question for question in questions if self.has_truth(question)}
        pairs = dict.fromkeys(
            (trace.question_id, answer)
            for pipeline_traces in traces
            for trace in pipeline_traces.values()
            if trace.question_id in scorable and not trace.error
            for answer in (trace.answer, *(p.answer for p in trace.passages if p.answer is not None))
        )
        self._score([(scorable[key], answer) for key, answer in pairs if (key, answer) not in self._known])

    def forget(self) -> None:
        """Drop the cached scores."""
        self._known.clear()

    def worth(self, answer: str, question: Question) -> float:
        """Return the worth of an answer, in [0, 1]."""
        if (question.id, answer) in self._known:
            return self._known[question.id, answer]
        return self._score([(question, answer)])[0]

    def correctness(self, question: Question, trace: TextlessTrace) -> float:
        """Return the worth of a trace's answer; 0 for a failed pipeline."""
        return 0.0 if trace.error else self.worth(trace.answer, question)

    def expectations(self, question: Question, trace: TextlessTrace, rankings: Iterable[str]) -> list[float]:
        """Return the expected score of a question under each ranking; that of the trace's answer without candidates."""
        pairs = [(p.scores, p.answer) for p in trace.passages if p.scores is not None and p.answer is not None]
        if not pairs or trace.error:
            return [self.correctness(question, trace) for _ in rankings]
        scores = [score for score, _ in pairs]
        return [
            sum(
                weight * self.worth(answer, question)
                for weight, (_, answer) in zip(choice_weights(scores, ranking), pairs, strict=True)
                if weight
            )
            for ranking in rankings
        ]

    def correct(self, questions: Iterable[Question], traces: Mapping[str, TextlessTrace]) -> list[float]:
        """Return `correctness` of the questions that have a trace, in order."""
        return [self.correctness(q, traces[q.id]) for q in questions if q.id in traces]

    def mean(self, questions: Iterable[Question], traces: Mapping[str, TextlessTrace], seed: int) -> Score | None:
        """Return the mean `correctness` of the questions that have a trace, with its interval."""
        answered = [question for question in questions if question.id in traces]
        return tables.mean(answered, self.correct(answered, traces), seed)

    def has_truth(self, question: Question) -> bool:
        """Return True if the data set has the reference that the metric compares with."""
        return has_truth(question, self.metric)

    def official(self, questions: Iterable[Question]) -> list[Question]:
        """Return the questions of the official score: no known visual ones, and in InfoSeek no two-hop ones."""
        return [question for question in questions if is_scored(question, self.metric)]

    def visual(self, questions: Iterable[Question]) -> list[Question]:
        """Return the visual questions."""
        return [q for q in questions if q.is_knowledge_based is False and self.has_truth(q)]

    def two_hop(self, questions: Iterable[Question]) -> list[Question]:
        """Return the two-hop questions."""
        return [q for q in questions if is_two_hop(q) and self.has_truth(q)]

    def columns(self, questions: Sequence[Question]) -> tuple[Column, ...]:
        """Return the columns of the metric's table without the overall score."""
        return tables.columns(self.metric, questions)

    def kind(self, question: Question) -> str:
        """Return a question's row in a break-down: its answer type, or the metric's own question type."""
        return tables.kind(question, self.metric)

    def breakdown(
        self, questions: Sequence[Question], values: Sequence[float] | np.ndarray, seed: int
    ) -> dict[str, Score | None]:
        """Return the overall score and that of each column, from one value per question."""
        return tables.breakdown(self.metric, questions, values, seed)

    def headline(self, questions: Sequence[Question]) -> str:
        """Return the headline column: `overall`, or one half of InfoSeek if all questions are of that half."""
        return tables.headline(self.metric, questions).name

    def difference(
        self,
        questions: Sequence[Question],
        first: Sequence[float] | np.ndarray,
        second: Sequence[float] | np.ndarray,
        seed: int,
        column: str = "",
    ) -> dict[str, Any] | None:
        """Return the difference of two systems' scores, paired by question, with its interval over entities.

        Args:
            questions: Questions that both answered.
            first: One value per question.
            second: The other system's values, in the same order.
            column: A column of the metric's table; the headline score if "".

        Returns:
            The difference, with the column under `of`; None without questions in the column.
        """
        number = tables.headline(self.metric, questions)
        ours, theirs = np.asarray(first, dtype=float), np.asarray(second, dtype=float)
        if column not in ("", number.name):
            (holds,) = (table_column.holds for table_column in self.columns(questions) if table_column.name == column)
            in_column = np.array([holds(question) for question in questions], dtype=bool)
            number = tables.Headline(column)
            ours, theirs = ours[in_column], theirs[in_column]
            questions = list(compress(questions, in_column))
        interval = number.estimate(questions, [ours], seed, [theirs])
        return interval and {**interval, "of": number.name}

    def facts(self, questions: Sequence[Question]) -> dict[str, object]:
        """Return the metric's name, caption, and columns with their heads."""
        heads = {OVERALL: OVERALL} | {column.name: column.title for column in self.columns(questions)}
        bem = {"name": self.bem.name, "fingerprint": self.bem.fingerprint} if self.bem is not None else None
        return {"name": self.metric, "caption": CAPTIONS[self.metric], "columns": heads, "bem": bem}

    def _score(self, pairs: Sequence[tuple[Question, str]]) -> list[float]:
        answers = [Answered(question, answer, f"question {question.id} can't be scored") for question, answer in pairs]
        values, too_long = score_answers(answers, self.metric, "official", self.bem, too_long="wrong")
        self.too_long |= dict.fromkeys(too_long)
        correctness = [float(value) for value in np.asarray(values)]
        if self.metric == "evqa":
            self._known |= {(q.id, answer): value for (q, answer), value in zip(pairs, correctness, strict=True)}
        return correctness


def check_scorable(questions: Iterable[Question], metric: Metric) -> None:
    """Score a dummy answer to every question that has a reference, to raise early for those that can't be scored.

    This needs no BEM.

    Raises:
        UserError: A question lacks the reference that the metric compares with.
    """
    compared: Metric = "evqa_exact" if metric == "evqa" else metric
    answers = [Answered(q, "?", f"question {q.id} can't be scored") for q in questions if has_truth(q, metric)]
    score_answers(answers, compared, "official", None, too_long="wrong")

"""Compare the probabilities of gates and relevance with the truth, for reliability diagrams."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from reflectune.core.types import Question
from reflectune.inference.pipelines.diagnostics import is_searchable, is_stating
from reflectune.inference.scoring.scores import TraceScorer
from reflectune.inference.sweeps.outcomes import CheckedProbability
from reflectune.inference.sweeps.points import Point
from reflectune.inference.trace import Trace
from reflectune.metrics.scoring.registry import is_wrong

Judge = Callable[[Question, Mapping[str, Trace], TraceScorer], Sequence[CheckedProbability]]
REFLECTION = "(reflection)"
CLOSED_BOOK = "(closed book)"


@dataclass(frozen=True)
class ReliabilityCheck:
    """Checks of one pipeline's probabilities.

    Attributes:
        points: Grid points that are run in addition to the grid's.
        judge: Returns the checked probabilities of a question's traces by point.
        names: Name of the probability and of the true outcome, by kind.
    """

    points: Sequence[Point]
    judge: Judge
    names: Mapping[str, tuple[str, str]]


def _judge_mr2ag(question: Question, traces: Mapping[str, Trace], measure: TraceScorer) -> list[CheckedProbability]:
    """Check the gate against the kind of question, and S_rel of all passages of a knowledge-based question."""
    trace = traces[REFLECTION]
    probabilities = []
    if trace.gate is not None and question.is_knowledge_based is not None:
        probabilities.append(CheckedProbability("gate", trace.gate, question.is_knowledge_based))
    return probabilities + _relevance(question, trace, measure)


def _judge_mmkb(question: Question, traces: Mapping[str, Trace], measure: TraceScorer) -> list[CheckedProbability]:
    """Check RET against the base model's answer, by the rule of its labels, and SRT against the documents' text."""
    if REFLECTION not in traces:
        return []
    trace, closed = traces[REFLECTION], traces[CLOSED_BOOK]
    probabilities = []
    if trace.gate is not None and not closed.error and (measure.official([question]) or measure.visual([question])):
        probabilities.append(CheckedProbability("gate", trace.gate, is_wrong(measure.correctness(question, closed))))
    return probabilities + _relevance(question, trace, measure)


def _relevance(question: Question, trace: Trace, measure: TraceScorer) -> list[CheckedProbability]:
    if not measure.official([question]) or not is_searchable(question):
        return []
    predictions = [(p.passage, p.s_rel) for p in trace.passages if p.s_rel is not None]
    return [CheckedProbability("relevance", score, is_stating(question, passage)) for passage, score in predictions]


RELIABILITY_CHECKS: Mapping[str, ReliabilityCheck] = {
    "mr2ag": ReliabilityCheck(
        (Point(REFLECTION, {"pipeline": "mr2ag", "gamma": 0.0}),),
        _judge_mr2ag,
        {"gate": ("Gate", "share that is knowledge-based"), "relevance": ("S_rel", "share that states the answer")},
    ),
    "mmkb_rag": ReliabilityCheck(
        (Point(REFLECTION, {"pipeline": "reflection"}), Point(CLOSED_BOOK, {"pipeline": "closed_book"})),
        _judge_mmkb,
        {"gate": ("RET", "share that the base model gets wrong"), "relevance": ("SRT", "share that states the answer")},
    ),
}
"""Checks by pipeline."""

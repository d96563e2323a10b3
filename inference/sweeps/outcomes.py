"""Outcomes of questions at grid points, small enough to keep for every point."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from reflectune.core.types import Question
from reflectune.inference.scoring.scores import TraceScorer
from reflectune.inference.trace import Trace
from reflectune.metrics.reporting.breakdown import OVERALL, Score, mean


@dataclass(frozen=True)
class PointOutcome:
    """The outcome of one question at one grid point.

    Attributes:
        right: Expected correctness by the data set's metric, in [0, 1]; fractional where a ranking ties. 0 without a
            known answer; such questions are in no score.
        retrieved: True if entries were retrieved.
        read: Number of passages that the model read, judged or answered from.
        answer: The answer.
        problem: The error, the problem of MCT's reply or the pipeline's fallback; "" if there is none.
    """

    right: float
    retrieved: bool
    read: int
    answer: str
    problem: str = ""


@dataclass(frozen=True)
class CheckedProbability:
    """A probability of a reflection, and the truth.

    Attributes:
        kind: `gate` or `relevance`.
        probability: In [0, 1].
        true: True if retrieval is needed, or the passage states the answer.
    """

    kind: str
    probability: float
    true: bool


def outcome(question: Question, trace: Trace, measure: TraceScorer, ranking: str = "") -> PointOutcome:
    """Score a trace. With a ranking, its candidates are ranked again by that one."""
    right = 0.0
    if measure.has_truth(question):
        ranked = measure.expectations(question, trace, [ranking])[0] if ranking else None
        right = measure.correctness(question, trace) if ranked is None else ranked
    return PointOutcome(
        right=right,
        retrieved=trace.retrieved,
        read=trace.tokens.get("passages_read", len(trace.passages)),
        answer=trace.answer,
        problem=trace.error or (trace.mct.problem if trace.mct else "") or trace.fallback,
    )


def to_row(outcomes: Mapping[str, PointOutcome], judgements: Sequence[CheckedProbability]) -> dict[str, Any]:
    """Return a question's outcomes by point and its checked probabilities as JSON."""
    return {
        "points": {name: asdict(point_outcome) for name, point_outcome in outcomes.items()},
        "judgements": [asdict(judgement) for judgement in judgements],
    }


@dataclass(frozen=True)
class GridOutcomes:
    """The outcomes of a run: questions, and a row for each.

    Attributes:
        questions: The questions, in order of id.
        rows: Rows of `to_row`, by question id.
        measure: The scorer of the rows.
    """

    questions: Sequence[Question]
    rows: Mapping[str, dict[str, Any]]
    measure: TraceScorer

    @property
    def official(self) -> list[Question]:
        """The questions of the official score."""
        return self.measure.official(self.questions)

    def taken(self, point: str, questions: Sequence[Question]) -> list[Question]:
        """Return the questions that the point's pipeline answers."""
        return [q for q in questions if point in self.rows[q.id]["points"]]

    def right(self, point: str, questions: Sequence[Question]) -> np.ndarray:
        """Return the correctness at a point, shape (questions,)."""
        return np.array([self.rows[q.id]["points"][point]["right"] for q in questions], dtype=float)

    def share(self, point: str, name: str, questions: Sequence[Question]) -> float | None:
        """Return the mean of `retrieved` or `read` at a point; None without questions."""
        values = [float(self.rows[q.id]["points"][point][name]) for q in questions]
        return sum(values) / len(values) if values else None

    def troubled(self, point: str, questions: Sequence[Question]) -> float | None:
        """Return the share of questions where the pipeline failed or fell back; None without questions."""
        values = [bool(self.rows[q.id]["points"][point]["problem"]) for q in questions]
        return sum(values) / len(values) if values else None

    def judgements(self, kind: str) -> list[CheckedProbability]:
        """Return all checked probabilities of one kind."""
        return [
            CheckedProbability(**judgement)
            for row in self.rows.values()
            for judgement in row["judgements"]
            if judgement["kind"] == kind
        ]


def point_scores(results: GridOutcomes, point: str, seed: int) -> dict[str, Score | float | None]:
    """Return a point's scores with 95 % intervals, its retrieval rates, and the passages read per question.

    `accuracy` is the metric's overall score, or the score of InfoSeek's one half if only that was asked; the columns of
    the metric's table follow.
    """
    measure = results.measure
    every = results.taken(point, results.questions)
    official, looked_at = measure.official(every), measure.visual(every)
    table = measure.breakdown(official, results.right(point, official).tolist(), seed)
    return {
        "accuracy": table[measure.headline(official)],
        **{name: score for name, score in table.items() if name != OVERALL},
        "visual": mean(looked_at, results.right(point, looked_at), seed),
        "retrieval_rate": results.share(point, "retrieved", every),
        "retrieval_rate_official": results.share(point, "retrieved", official),
        "retrieval_rate_visual": results.share(point, "retrieved", looked_at),
        "passages_read": results.share(point, "read", every),
        "fell_back": results.troubled(point, every),
    }


def over_start(results: GridOutcomes, point: str, start: str, seed: int) -> dict[str, Any] | None:
    """Return a point's score less that of the point `start`, paired by question, with its interval; None at `start`."""
    pairs = results.taken(start, results.taken(point, results.official))
    ours, theirs = (results.right(name, pairs) for name in (point, start))
    return results.measure.difference(pairs, ours, theirs, seed) if pairs and point != start else None

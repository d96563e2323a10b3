"""Breakdown of a metric's scores: the overall score, the columns of its official table, and their intervals."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import numpy as np

from reflectune.core.types import Metric, Question
from reflectune.metrics.official import infoseek
from reflectune.metrics.official.evqa import QUESTION_TYPES
from reflectune.metrics.reporting.intervals import Batched, Statistic, bootstrap_interval
from reflectune.metrics.scoring.registry import evqa_type

Score = dict[str, float | int]
"""`{"value", "low", "high", "n"}`: a fraction of 1 with its 95 % interval, over n questions."""

OVERALL = "overall"


@dataclass(frozen=True)
class Column:
    """A column of a metric's official table: its key, its head, and which questions it is over."""

    name: str
    title: str
    holds: Callable[[Question], bool]


@dataclass(frozen=True)
class Headline:
    """Overall score of a system.

    Attributes:
        name: `overall`; for InfoSeek with an empty half, the other half's column.
        half: True for questions of InfoSeek's unseen-question half, shape (questions,), if the score is the harmonic
            mean of both halves; None if it is the mean.
    """

    name: str
    half: np.ndarray | None = None

    @property
    def statistic(self) -> Statistic | None:
        """The score of the rows that `rows` makes; None is their mean."""
        return None if self.half is None else _HARMONIC

    def rows(self, values: Sequence[float] | np.ndarray) -> np.ndarray:
        """The rows that `statistic` takes, from one value per question."""
        scores = np.asarray(values, dtype=float)
        return scores if self.half is None else np.column_stack([self.half, scores])


CAPTIONS: Mapping[Metric, str] = {
    "infoseek": "InfoSeek's official score. Overall is the harmonic mean of the two splits",
    "evqa": "E-VQA's official score: exact match or overlap of lists, else BEM. Overall is the mean over all questions",
    "evqa_exact": "The part of E-VQA's score without BEM, a lower bound. Overall is the mean over all questions",
    "vqa": "VQA's soft accuracy over annotators, as LAVIS computes it. Overall is the mean over all questions",
    "exact_match": "Exact match with an accepted answer. Overall is the mean over all questions",
    "hotpotqa_f1": "HotpotQA's F1 of words with the answer. Overall is the mean over all questions",
    "cover_match": "Cover match: an accepted answer stands in the reply. Overall is the mean over all questions",
    "rouge_l": "ROUGE-L, F-measure. Overall is the mean over all questions",
}
"""Caption of each metric's table."""

_HALVES = (
    Column("unseen_question", "unseen question", lambda question: infoseek.is_unseen_question(question.split)),
    Column("unseen_entity", "unseen entity", lambda question: not infoseek.is_unseen_question(question.split)),
)
_EVQA_TITLES = {"multi_answer": "multi-answer", "2_hop": "two-hop"}
_VQA_TYPES = ("yes/no", "number", "other")


def columns(metric: Metric, questions: Sequence[Question]) -> tuple[Column, ...]:
    """Return the columns of the metric's table next to the overall score.

    InfoSeek's halves; E-VQA's single-hop questions and its question types; VQA's answer types (`meta["answer_type"]`);
    for other metrics the splits, if there are several.
    """
    if metric == "infoseek":
        return _HALVES
    if metric in ("evqa", "evqa_exact"):
        single = Column("single_hop", "single-hop", lambda question: evqa_type(question) != "2_hop")
        return (single, *(Column(kind, _EVQA_TITLES.get(kind, kind), _is(evqa_type, kind)) for kind in QUESTION_TYPES))
    if metric == "vqa":
        said = [kind for kind in _VQA_TYPES if any(_vqa_type(question) == kind for question in questions)]
        return tuple(Column(kind, kind, _is(_vqa_type, kind)) for kind in said) if len(said) > 1 else ()
    splits = sorted({question.split for question in questions})
    return (
        tuple(Column(f"split:{name}", name, _is(attrgetter("split"), name)) for name in splits)
        if len(splits) > 1
        else ()
    )


def kind(question: Question, metric: Metric) -> str:
    """Return the column of a question: E-VQA's or VQA's question type, else the answer type."""
    if metric in ("evqa", "evqa_exact"):
        return evqa_type(question)
    if metric == "vqa":
        return question.meta.get("question_type") or question.answer_type
    return question.answer_type


def headline(metric: Metric, questions: Sequence[Question]) -> Headline:
    """The score that a system is known by over these questions."""
    if metric != "infoseek":
        return Headline(OVERALL)
    half = np.array([infoseek.is_unseen_question(question.split) for question in questions], dtype=float)
    if 0 < half.sum() < len(half):
        return Headline(OVERALL, half)
    return Headline(_HALVES[0].name if len(half) and half.all() else _HALVES[1].name)


def breakdown(
    metric: Metric, questions: Sequence[Question], values: Sequence[float] | np.ndarray, seed: int
) -> dict[str, Score | None]:
    """The overall score and each column's, from one value per question; None where there is nothing to score."""
    scores = np.asarray(values, dtype=float)
    first = headline(metric, questions)
    table: dict[str, Score | None] = {OVERALL: None}
    if first.name == OVERALL:
        table[OVERALL] = score_rows(first.rows(scores), seed, first.statistic, strata=first.half)
    for column in columns(metric, questions):
        table[column.name] = mean(scores[[column.holds(question) for question in questions]], seed)
    return table


def by_label(values: np.ndarray, labels: Sequence[str], seed: int) -> dict[str, Any]:
    """The mean of the values of each label, with its interval."""
    names = np.array(labels)
    return {str(name): mean(values[names == name], seed) for name in np.unique(names)}


def score_rows(
    rows: np.ndarray, seed: int, statistic: Statistic | None = None, strata: np.ndarray | None = None
) -> Score | None:
    """A statistic over rows (one a question; their mean if None) with its bootstrap interval over questions."""
    if not len(rows):
        return None
    low, high = bootstrap_interval(rows, statistic, seed=seed, strata=strata)
    value = rows.mean() if statistic is None else statistic(rows)
    return {"value": float(value), "low": low, "high": high, "n": len(rows)}


def mean(values: Sequence[float] | np.ndarray, seed: int) -> Score | None:
    """The mean of one value per question, with its interval."""
    return score_rows(np.asarray(values, dtype=float), seed)


def harmonic(rows: np.ndarray) -> float:
    """InfoSeek's overall score, unrounded, of rows (is unseen question, score)."""
    unseen = rows[:, 0] == 1
    return infoseek.overall(_average(rows[unseen, 1]), _average(rows[~unseen, 1]))


def _harmonics(resamples: np.ndarray) -> np.ndarray:
    """`harmonic` of each resample, shape (resamples, questions, 2)."""
    unseen = resamples[..., 0] == 1
    if (unseen != unseen[0]).any():  # drawn without regard to the halves
        return np.array([harmonic(rows) for rows in resamples])
    question, entity = (_averages(resamples[..., 1][:, half]) for half in (unseen[0], ~unseen[0]))
    total = question + entity
    return np.divide(2 * question * entity, total, out=np.zeros_like(total), where=total != 0)


_HARMONIC = Batched(harmonic, _harmonics)


def _averages(values: np.ndarray) -> np.ndarray:
    if not values.shape[1]:
        return np.zeros(len(values))
    return np.ascontiguousarray(values).mean(axis=1)  # summed in the order of one row alone


def _average(values: np.ndarray) -> float:
    return float(values.mean()) if len(values) else 0.0


def _is(of: Callable[[Question], str], value: str) -> Callable[[Question], bool]:
    return lambda question: of(question) == value


def _vqa_type(question: Question) -> str:
    return question.meta.get("answer_type", "")

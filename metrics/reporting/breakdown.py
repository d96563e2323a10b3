"""Breakdown of a metric's scores: the overall score, the columns of its official table, and their intervals."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from operator import attrgetter
from typing import Any

import numpy as np

from reflectune.core.types import Metric, Question
from reflectune.metrics.official import infoseek
from reflectune.metrics.official.evqa import QUESTION_TYPES
from reflectune.metrics.reporting import gates
from reflectune.metrics.reporting.intervals import Estimate, Statistic, average, entities, over_seeds
from reflectune.metrics.scoring.registry import evqa_type

Score = dict[str, float | int]
"""`{"value", "low", "high", "n"}`: a fraction of 1 with its 95 % interval, over n questions."""

OVERALL = "overall"


@dataclass(frozen=True)
class Column:
    """A column of a metric's official table: its key, its head, and a predicate of its questions."""

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
    def statistic(self) -> Statistic:
        """The score of the rows that `rows` returns."""
        return average if self.half is None else harmonic

    def rows(self, values: Sequence[float] | np.ndarray) -> np.ndarray:
        """Return the rows that `statistic` takes, from one value per question."""
        scores = np.asarray(values, dtype=float)
        return scores if self.half is None else np.column_stack([self.half, scores])

    def estimate(
        self,
        questions: Sequence[Question],
        runs: Sequence[Sequence[float] | np.ndarray],
        seed: int,
        against: Sequence[Sequence[float] | np.ndarray] = (),
    ) -> Score | None:
        """Return the score's mean over training seeds with its interval over entities and seeds.

        Args:
            questions: The questions; None is returned without any.
            runs: For each training seed one value per question.
            seed: Seed of the resampling.
            against: Another system's runs, whose mean is subtracted, in the same order.
        """
        if not questions:
            return None
        ours, theirs = ([self.rows(values) for values in side] for side in (runs, against))
        clusters = entities(questions)
        drawn = over_seeds(ours, self.statistic, theirs or None, seed=seed, strata=self.half, clusters=clusters)
        return _score(drawn, questions)


CAPTIONS: Mapping[Metric, str] = {
    "infoseek": "InfoSeek's official score. Overall is the harmonic mean of the two splits",
    "evqa": "E-VQA's official score: exact match or overlap of lists, else BEM. Overall is the mean over all questions",
    "evqa_exact": "The part of E-VQA's score without BEM, a lower bound. Overall is the mean over all questions",
    "vqa": "VQA's soft accuracy over annotators, as LAVIS computes it. Overall is the mean over all questions",
    "exact_match": "Exact match with an accepted answer. Overall is the mean over all questions",
    "hotpotqa_f1": "HotpotQA's F1 of words with the answer. Overall is the mean over all questions",
    "choice": "Accuracy of the letter that a reply chooses. Overall is the mean over all questions",
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

    InfoSeek's halves; E-VQA's single-hop questions and its question types; VQA's answer types (`meta["answer_type"]`),
    if there are several; for other metrics the splits, if there are several.
    """
    if metric == "infoseek":
        return _HALVES
    if metric in ("evqa", "evqa_exact"):
        single = Column("single_hop", "single-hop", lambda question: evqa_type(question) != "2_hop")
        return (single, *(Column(kind, _EVQA_TITLES.get(kind, kind), _is(evqa_type, kind)) for kind in QUESTION_TYPES))
    if metric == "vqa":
        kinds = [kind for kind in _VQA_TYPES if any(_vqa_type(question) == kind for question in questions)]
        found = [Column(kind, kind, _is(_vqa_type, kind)) for kind in kinds]
    else:
        splits = sorted({question.split for question in questions})
        found = [Column(f"split:{name}", name, _is(attrgetter("split"), name)) for name in splits]
    return tuple(found) if len(found) > 1 else ()


def kind(question: Question, metric: Metric) -> str:
    """Return the column of a question: E-VQA's or VQA's question type, else the answer type."""
    if metric in ("evqa", "evqa_exact"):
        return evqa_type(question)
    if metric == "vqa":
        return question.meta.get("question_type") or question.answer_type
    return question.answer_type


def headline(metric: Metric, questions: Sequence[Question]) -> Headline:
    """Return the headline score for these questions."""
    if metric != "infoseek":
        return Headline(OVERALL)
    half = np.array([infoseek.is_unseen_question(question.split) for question in questions], dtype=float)
    if 0 < half.sum() < len(half):
        return Headline(OVERALL, half)
    return Headline(_HALVES[0].name if len(half) and half.all() else _HALVES[1].name)


def breakdown(
    metric: Metric, questions: Sequence[Question], values: Sequence[float] | np.ndarray, seed: int
) -> dict[str, Score | None]:
    """Return the overall score and each column's, from one value per question; None where there is nothing to score."""
    scores = np.asarray(values, dtype=float)
    first = headline(metric, questions)
    table: dict[str, Score | None] = {OVERALL: None}
    if first.name == OVERALL:
        table[OVERALL] = first.estimate(questions, [scores], seed)
    return table | {
        column.name: _part(questions, scores, [column.holds(question) for question in questions], seed)
        for column in columns(metric, questions)
    }


def by_label(
    questions: Sequence[Question], values: np.ndarray, labels: Sequence[str], seed: int
) -> dict[str, Score | None]:
    """Return the mean of the values of each label, with its interval."""
    names = np.array(labels)
    return {str(name): _part(questions, values, names == name, seed) for name in np.unique(names)}


def score_rows(
    questions: Sequence[Question],
    rows: np.ndarray,
    seed: int,
    statistic: Statistic = average,
    strata: np.ndarray | None = None,
    against: np.ndarray | None = None,
) -> Score | None:
    """Return a statistic over rows, one a question, less that of `against`, with its interval over entities."""
    if not len(rows):
        return None
    others = None if against is None else [against]
    drawn = over_seeds([rows], statistic, others, seed=seed, strata=strata, clusters=entities(questions))
    return _score(drawn, questions)


def auroc(questions: Sequence[Question], rows: np.ndarray, seed: int) -> Score | None:
    """Return the AUROC of rows (probability, label); None unless both labels occur. Resamples entities per label."""
    if len(set(rows[:, 1])) != 2:
        return None
    return score_rows(questions, rows, seed, gates.weighted_auroc, strata=rows[:, 1])


def mean(questions: Sequence[Question], values: Sequence[float] | np.ndarray, seed: int) -> Score | None:
    """Return the mean of one value per question, with its interval over entities."""
    return score_rows(questions, np.asarray(values, dtype=float), seed)


def harmonic(rows: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return InfoSeek's overall score, unrounded, of rows (is unseen question, score) in each resample."""
    unseen = rows[:, 0] == 1
    question, entity = (average(rows[half, 1], weights[:, half]) for half in (unseen, ~unseen))
    total = question + entity
    return np.divide(2 * question * entity, total, out=np.zeros_like(total), where=total != 0)


def in_per_cent(score: Mapping[str, Any] | None) -> str:
    """Return a score in per cent, with its 95 % interval and the number of questions if it has them; a dash if None."""
    if not score or score.get("value") is None:
        return "–"
    value = f"{100 * score['value']:.1f}"
    if "low" not in score:
        return value
    return f"{value} [{100 * score['low']:.1f}, {100 * score['high']:.1f}], n = {score['n']}"


def _part(
    questions: Sequence[Question], values: np.ndarray, chosen: Sequence[bool] | np.ndarray, seed: int
) -> Score | None:
    """Return the mean over the chosen questions."""
    return mean(list(compress(questions, chosen)), values[np.asarray(chosen, dtype=bool)], seed)


def _score(estimate: Estimate, questions: Sequence[Question]) -> Score:
    return {"value": estimate.value, "low": estimate.low, "high": estimate.high, "n": len(questions)}


def _is(kind_of: Callable[[Question], str], value: str) -> Callable[[Question], bool]:
    return lambda question: kind_of(question) == value


def _vqa_type(question: Question) -> str:
    return question.meta.get("answer_type", "")

"""Decide stored traces of mR²AG again at every point of a grid, and fit the exponents of its product."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from reflectune.core.errors import UserError
from reflectune.core.types import Question
from reflectune.inference.pipelines.mr2ag import ChoiceSettings, decide_again
from reflectune.inference.scoring.scores import TraceScorer
from reflectune.inference.sweeps.judging import REFLECTION, RELIABILITY_CHECKS
from reflectune.inference.sweeps.outcomes import outcome, to_row
from reflectune.inference.sweeps.points import Point
from reflectune.inference.trace import Trace
from reflectune.inference.trace_files.columns import StoredTraces, whole_traces
from reflectune.metrics.reporting.intervals import entities

CHOICES = (*ChoiceSettings.model_fields, "relevance", "ranking")
"""Settings and choices by which a stored trace can be decided again."""

EXPONENTS = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
"""Values that a fit tries for each exponent."""

FOLDS = 5
"""Parts of the entities: each one's questions are decided by exponents fitted on the others."""

_SMALLEST = 1e-9


def decide_row(
    question: Question, trace: Trace, points: Sequence[tuple[Point, ChoiceSettings]], measure: TraceScorer
) -> dict[str, Any]:
    """Return a question's row of `to_row`, with its outcome at each point by the point's settings."""
    outcomes = {}
    for point, settings in points:
        decided = decide_again(trace, settings, judging=bool(point.settings.get("relevance", True)))
        outcomes[point.name] = outcome(question, decided, measure, point.ranking)
    return to_row(outcomes, RELIABILITY_CHECKS["mr2ag"].judge(question, {REFLECTION: trace}, measure))


@dataclass(frozen=True)
class FittedExponents:
    """Exponents of all questions, and by question id the settings with those of other entities' questions."""

    exponents: list[float]
    apart: Mapping[str, ChoiceSettings]


def fit_exponents(
    settings: ChoiceSettings,
    questions: Sequence[Question],
    stored: StoredTraces,
    measure: TraceScorer,
    seed: int,
) -> FittedExponents:
    """Return the exponents of maximum likelihood over a grid (`EXPONENTS`).

    The model is log-linear: a candidate is chosen with a probability proportional to its product. The likelihood is
    that of a right answer. Questions whose candidates are all right or all wrong don't change it. Ties go to the
    exponents nearest to 1. The highest exponent is scaled to 1, except with `votes`: without them a common factor
    changes no choice.

    Entities are drawn into `FOLDS` folds; a question's own exponents are fitted on the other folds.

    Raises:
        UserError: Fewer than two folds have a question with a right and a wrong candidate.
    """
    grid = np.array(sorted(itertools.product(EXPONENTS, repeat=3), key=_distance))
    folds = _folds(questions, seed)
    by_fold: defaultdict[int, np.ndarray] = defaultdict(lambda: np.zeros(len(grid)))
    official = measure.official(questions)
    for question, trace in zip(official, whole_traces(stored, [q.id for q in official]), strict=True):
        read = decide_again(trace, settings).passages
        candidates = [(p.scores, measure.worth(p.answer, question)) for p in read if p.scores and p.answer is not None]
        worth = np.array([value for _, value in candidates])
        if len(set(worth)) > 1:
            scores = np.array([(found.ret, found.rel, found.ans) for found, _ in candidates])
            products = np.log(scores.clip(min=_SMALLEST)) @ grid.T  # (candidates, points of the grid)
            weights = np.exp(products - products.max(axis=0))
            chance = np.log((weights * worth[:, None]).sum(axis=0) / weights.sum(axis=0) + _SMALLEST)
            by_fold[folds[question.id]] += chance
    if len(by_fold) < 2:
        raise UserError(
            "`fit` needs questions with a right and a wrong candidate on several entities; give more questions' traces"
        )

    def best(without: int | None) -> list[float]:
        found = grid[np.sum([chance for fold, chance in by_fold.items() if fold != without], axis=0).argmax()]
        return [float(value) for value in (found if settings.votes else found / max(found.max(), _SMALLEST))]

    apart = {fold: settings.model_copy(update={"exponents": best(fold)}) for fold in set(folds.values())}
    return FittedExponents(best(None), {name: apart[fold] for name, fold in folds.items()})


def _folds(questions: Sequence[Question], seed: int) -> dict[str, int]:
    """Return the fold of each question, by id; that of its entity."""
    of = entities(questions)
    names = sorted(set(of))
    drawn = dict(zip(np.random.default_rng(seed).permutation(names).tolist(), itertools.cycle(range(FOLDS))))
    return {question.id: drawn[name] for question, name in zip(questions, of, strict=True)}


def _distance(exponents: Sequence[float]) -> float:
    return sum(abs(math.log(max(value, EXPONENTS[1] / 2))) for value in exponents)

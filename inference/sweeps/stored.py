"""Decide stored traces of mR²AG again at every point of a grid, and fit the exponents of its product."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
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

CHOICES = (*ChoiceSettings.model_fields, "relevance", "ranking")
"""Settings and choices by which a stored trace can be decided again."""

EXPONENTS = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
"""Values that a fit tries for each exponent."""

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


def fit_exponents(
    settings: ChoiceSettings, questions: Sequence[Question], stored: Mapping[str, Trace], measure: TraceScorer
) -> list[float]:
    """Return the exponents of maximum likelihood, of a log-linear grid (`EXPONENTS`).

    A candidate counts as chosen with a probability proportional to its product. The likelihood is that of a right
    answer. Questions whose candidates are all right or all wrong say nothing. Of equal likelihoods, the nearest to 1 is
    taken. The highest exponent is scaled to 1, except with `votes`: without them a common factor changes no choice.

    Raises:
        UserError: No question has a right and a wrong candidate.
    """
    grid = np.array(sorted(itertools.product(EXPONENTS, repeat=3), key=_distance))
    likelihood, informative = np.zeros(len(grid)), 0
    for question in measure.official(questions):
        read = decide_again(stored[question.id], settings).passages
        candidates = [(p.scores, measure.worth(p.answer, question)) for p in read if p.scores and p.answer is not None]
        worth = np.array([value for _, value in candidates])
        if len(set(worth)) > 1:
            scores = np.array([(found.ret, found.rel, found.ans) for found, _ in candidates])
            products = np.log(scores.clip(min=_SMALLEST)) @ grid.T  # (candidates, points of the grid)
            weights = np.exp(products - products.max(axis=0))
            likelihood += np.log((weights * worth[:, None]).sum(axis=0) / weights.sum(axis=0) + _SMALLEST)
            informative += 1
    if not informative:
        raise UserError("no question of these traces has a right and a wrong candidate; `fit` needs some")
    found = grid[likelihood.argmax()]
    return [float(value) for value in (found if settings.votes else found / max(found.max(), _SMALLEST))]


def _distance(exponents: Sequence[float]) -> float:
    return sum(abs(math.log(max(value, EXPONENTS[1] / 2))) for value in exponents)

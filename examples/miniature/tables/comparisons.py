"""Leads of one setting over another, over seeds and entities, and verdicts on claims."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from reflectune.core.types import Question
from reflectune.metrics.official import infoseek
from reflectune.metrics.reporting.breakdown import harmonic
from reflectune.metrics.reporting.intervals import average, draw_weights, entities

Verdict = Literal["holds", "within noise", "does not hold", "not measured"]

RESAMPLES = 2000
"""Resamples of a comparison; enough for the second digit of a 95 % interval."""


@dataclass(frozen=True)
class SeedAnswers:
    """Answers of one setting with one seed.

    Attributes:
        ids: Ids of the questions.
        clusters: Entity of each question, which is drawn as a whole.
        unseen: True for questions of an unseen_question split, shape (questions,); all False if the score is the mean.
        right: Correctness, shape (questions,).
    """

    ids: tuple[str, ...]
    clusters: Sequence[str]
    unseen: np.ndarray
    right: np.ndarray

    @property
    def score(self) -> float:
        """InfoSeek's overall score, the harmonic mean of two splits' means; the mean if there is one split."""
        return float(self.scores(np.ones((1, len(self.ids))))[0])

    def scores(self, weights: np.ndarray) -> np.ndarray:
        """Return the score of each resample, whose weights have shape (resamples, questions)."""
        if self.unseen.all() or not self.unseen.any():
            return average(self.right, weights)
        return harmonic(np.column_stack([self.unseen, self.right]), weights)

    def draw(self, generator: np.random.Generator, resamples: int) -> np.ndarray:
        """Return the weights of resamples that draw the entities of each split."""
        return np.concatenate(list(draw_weights(len(self.ids), generator, resamples, self.unseen, self.clusters)))


@dataclass(frozen=True)
class Comparison:
    """Lead of one setting over another: the mean over seeds, and its 95 % interval."""

    value: float
    low: float
    high: float

    @property
    def verdict(self) -> Verdict:
        """`holds` if the whole interval is above 0, `does not hold` if it is below, else `within noise`."""
        if self.low > 0:
            return "holds"
        return "does not hold" if self.high < 0 else "within noise"


Term = tuple[float, Sequence[SeedAnswers]]
"""A weight, and one setting's answers, one item per seed."""


def answers(
    questions: Sequence[Question], right: Sequence[float] | np.ndarray, *, source: str = "", by_split: bool = True
) -> SeedAnswers:
    """Make answers from questions and their correctness.

    Args:
        questions: The questions.
        right: Correctness of each question.
        source: The data set's fingerprint; questions of two data sets are never the same.
        by_split: Use the official score over splits; else the mean over all questions.
    """
    unseen = np.array([by_split and infoseek.is_unseen_question(q.split) for q in questions], dtype=bool)
    ids = tuple(f"{source}/{q.id}" for q in questions)
    return SeedAnswers(ids, entities(questions), unseen, np.asarray(right, dtype=float))


def compare(terms: Sequence[Term], seed: int) -> Comparison:
    """Compute a weighted sum of settings' scores, mean over seeds, with an interval over seeds and entities.

    `[(1, a), (-1, b)]` is the lead of a over b. Each resample draws as many seeds as there are, with replacement,
    and the entities of each split of each seed. Where seeds were asked the same questions, they share the draw of
    entities, since these questions' luck is the same in all of them.

    Args:
        terms: All with the same seeds and questions.
        seed: Seed of the resampling.

    Raises:
        ValueError: Terms or seeds are missing, or two settings answered different questions.
    """
    question_ids = {tuple(seed_answers.ids for seed_answers in setting) for _, setting in terms}
    if len(question_ids) != 1 or not next(iter(question_ids)):
        raise ValueError("expected settings' answers to the same questions, with at least one seed")
    first = terms[0][1]
    generator = np.random.default_rng(seed)
    common = first[0].draw(generator, RESAMPLES)
    drawn = []
    for number, seed_answers in enumerate(first):
        weights = common if seed_answers.ids == first[0].ids else seed_answers.draw(generator, RESAMPLES)
        drawn.append(sum(weight * setting[number].scores(weights) for weight, setting in terms))
    seeds = generator.integers(len(drawn), size=(len(drawn), RESAMPLES))
    means = np.take_along_axis(np.stack(drawn), seeds, axis=0).mean(axis=0)
    low, high = np.quantile(means, [0.025, 0.975])
    value = sum(weight * float(np.mean([seed_answers.score for seed_answers in setting])) for weight, setting in terms)
    return Comparison(value, float(low), float(high))


def verdict_of(comparisons: Sequence[Comparison]) -> Verdict:
    """Return the verdict on a claim of several comparisons: it holds if all hold, and not if one is reversed."""
    verdicts = {comparison.verdict for comparison in comparisons}
    if not verdicts:
        return "not measured"
    if "does not hold" in verdicts:
        return "does not hold"
    return "holds" if verdicts == {"holds"} else "within noise"

"""Agreement of a decision, or of its probability, with the truth. All inputs are 1-D and equally long."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from reflectune.core.hashing import fingerprint
from reflectune.core.odds import sigmoid
from reflectune.models.schemes.calibration import GateScaling, beta_features, checked_probabilities

BINS = 10
"""Equal-width bins of probabilities."""
LEAST_SCALE = 0.01
"""Lower bound of a fitted scale, above 0 so that the order of probabilities is kept."""


def accuracy(decisions: ArrayLike, labels: ArrayLike) -> float:
    """Share of decisions that equal their labels."""
    made, truth = _checked_pair(decisions, labels, bool)
    return float((made == truth).mean())


def auroc(scores: ArrayLike, labels: ArrayLike) -> float:
    """Return the probability that a positive outscores a negative, with ties as half (exact Mann–Whitney U)."""
    values, numbers = _checked_pair(scores, labels, float)
    truth = numbers.astype(bool)
    _check_both_labels(truth)
    return float(weighted_auroc(np.column_stack([values, truth]), np.ones((1, len(values))))[0])


def weighted_auroc(rows: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return the `auroc` of rows (score, label), shape (items, 2), under weights of shape (resamples, items)."""
    order = np.argsort(rows[:, 0], kind="stable")
    starts = np.flatnonzero(np.diff(rows[order, 0], prepend=-np.inf))
    truth = rows[:, 1].astype(bool)
    positive, negative = (
        np.add.reduceat((weights * side)[:, order], starts, axis=1) for side in (truth, ~truth)
    )  # by distinct score, rising
    wins = (positive * (np.cumsum(negative, axis=1) - negative / 2)).sum(axis=1)
    return wins / (positive.sum(axis=1) * negative.sum(axis=1))


def expected_calibration_error(probabilities: ArrayLike, outcomes: ArrayLike) -> float:
    """Return the mean gap between probability and outcome over `BINS`, weighted by their share of items.

    Args:
        probabilities: In [0, 1]; 1.0 falls in the last bin.
        outcomes: In [0, 1]; usually 0 or 1.
    """
    values, truth = _checked_pair(probabilities, outcomes, float)
    return float(weighted_calibration_error(np.column_stack([values, truth]), np.ones((1, len(values))))[0])


def weighted_calibration_error(rows: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return the `expected_calibration_error` of weighted questions, shape (resamples,).

    Args:
        rows: (probability, outcome): shape (questions, 2), or (questions, decisions, 2) padded with NaN.
        weights: Shape (resamples, questions).
    """
    present = ~np.isnan(rows[..., 0])
    question = np.nonzero(present)[0]
    values, truth = rows[present].T
    checked_probabilities(values)
    bins = bins_of(values) + BINS * question
    gaps = np.bincount(bins, weights=values - truth, minlength=BINS * len(rows)).reshape(-1, BINS)
    return np.abs(weights @ gaps).sum(axis=1) / (weights @ np.bincount(question, minlength=len(rows)))


def bins_of(probabilities: np.ndarray) -> np.ndarray:
    """Return the number of each probability's bin."""
    return np.minimum((probabilities * BINS).astype(int), BINS - 1)


def fit_scaling(probabilities: ArrayLike, outcomes: ArrayLike) -> GateScaling:
    """Fit a gate's scaling by maximum likelihood with Newton's method. Its scales are at least `LEAST_SCALE`.

    A Gaussian prior, scales 1 ± 1 and bias 0 ± 1, keeps the fit finite for a gate without errors.

    Args:
        probabilities: In [0, 1].
        outcomes: In [0, 1]; usually 0 or 1, and not all equal.

    Raises:
        ValueError: Outcomes are all equal, there is none, or a probability is not in [0, 1].
    """
    values, truth = _checked_pair(probabilities, outcomes, float)
    _check_both_labels(truth)
    order = np.lexsort((truth, values))  # sums in one order, so that the order of the input changes no bit
    least = np.array([LEAST_SCALE, LEAST_SCALE, -np.inf])
    weights = fit_logistic(beta_features(values[order]), truth[order], np.array([1.0, 1.0, 0.0]), least=least)
    return GateScaling(*weights.tolist())


def fit_temperature(probabilities: ArrayLike, outcomes: ArrayLike) -> float:
    """Fit the temperature that log-odds are divided by, by maximum likelihood.

    A Gaussian prior, 1 / temperature is 1 ± 1, keeps it above 0. Arguments and errors are those of `fit_scaling`.
    """
    values, truth = _checked_pair(probabilities, outcomes, float)
    _check_both_labels(truth)
    log_odds = beta_features(values)[:, :2].sum(axis=1, keepdims=True)
    return float(1 / fit_logistic(log_odds, truth, np.ones(1), least=LEAST_SCALE)[0])


def fit_logistic(
    features: np.ndarray,
    truth: np.ndarray,
    prior: np.ndarray,
    precision: float = 1.0,
    least: float | np.ndarray = -np.inf,
) -> np.ndarray:
    """Return the weights of a logistic regression by projected Newton steps, shape (features,).

    Args:
        features: Shape (rows, features).
        truth: Outcomes in [0, 1], shape (rows,).
        prior: Mean of the weights' Gaussian prior, and the start.
        precision: Inverse variance of the prior, above 0.
        least: Lower bounds of the weights.
    """

    def loss(weights: np.ndarray) -> float:
        return logistic_loss(features @ weights, truth) + float(precision * np.sum((weights - prior) ** 2) / 2)

    weights = prior
    for _ in range(100):
        p = sigmoid(features @ weights)
        slope = features.T @ (p - truth) + precision * (weights - prior)
        curvature = features.T @ (features * (p * (1 - p))[:, None]) + precision * np.eye(len(prior))
        free = (weights > least) | (slope < 0)  # a weight at its bound stays there
        step = np.zeros(len(prior))
        step[free] = np.linalg.solve(curvature[np.ix_(free, free)], slope[free])
        while loss(moved := np.maximum(weights - step, least)) > loss(weights) and np.abs(step).max() > 1e-12:
            step = step / 2
        if np.abs(moved - weights).max() < 1e-10:
            break
        weights = moved
    return weights


def logistic_loss(odds: np.ndarray, truth: np.ndarray) -> float:
    """Return the negative log-likelihood of outcomes under log-odds, summed."""
    return float(np.sum(np.logaddexp(0, odds) - truth * odds))


def halves(groups: Sequence[str]) -> np.ndarray:
    """Return each row's half, shape (rows,), bool: by a hash of its group's name, so that a group stays together."""
    half = {name: int(fingerprint(name), 16) % 2 == 1 for name in set(groups)}
    return np.array([half[name] for name in groups], dtype=bool)


def cross_fit(probabilities: ArrayLike, outcomes: ArrayLike, half: ArrayLike) -> np.ndarray:
    """Calibrate probabilities, each by the scaling fitted on the other half, shape (rows,).

    Args:
        probabilities: In [0, 1].
        outcomes: In [0, 1]; usually 0 or 1, and not all equal in either half.
        half: Half of each row, from `halves`.

    Raises:
        ValueError: A half is empty or its outcomes are all equal, or a probability is not in [0, 1].
    """
    values, truth = _checked_pair(probabilities, outcomes, float)
    second = _checked_pair(values, half, float)[1].astype(bool)
    scaled = np.empty_like(values)
    for side in (second, ~second):
        scaled[side] = fit_scaling(values[~side], truth[~side]).apply(values[side])
    return scaled


def risk_coverage(confidences: ArrayLike, correct: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """Return the error rate among the most confident answers, by their share of all answers.

    Returns:
        (coverage, risk), each of shape (distinct confidences,), coverage rising to 1. Answers of equal confidence enter
        together, since no threshold can separate them.
    """
    values, right = _checked_pair(confidences, correct, float)
    order = np.argsort(-values, kind="stable")
    ranked, errors = values[order], np.cumsum(1 - right[order])
    ends = np.flatnonzero(np.append(ranked[1:] != ranked[:-1], True))
    return (ends + 1) / len(values), errors[ends] / (ends + 1)


def _checked_pair(first: ArrayLike, second: ArrayLike, kind: DTypeLike) -> tuple[np.ndarray, np.ndarray]:
    one: np.ndarray = np.asarray(first, dtype=kind)
    other: np.ndarray = np.asarray(second, dtype=kind)
    if one.ndim != 1 or one.shape != other.shape or not len(one):
        raise ValueError(f"expected two 1-D arrays of one length, at least 1; found shapes {one.shape}, {other.shape}")
    if np.isnan(one).any() or np.isnan(other).any():
        raise ValueError(f"expected numbers, found {np.isnan(one).sum() + np.isnan(other).sum()} NaN")
    return one, other


def _check_both_labels(truth: np.ndarray) -> None:
    if (truth == truth[0]).all():
        raise ValueError(f"expected positives and negatives, found {len(truth)} labels that are all {truth[0]}")

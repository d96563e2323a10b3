"""Agreement of a decision, or of its probability, with the truth. All inputs are 1-D and equally long."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from reflectune.core.hashing import fingerprint

TEMPERATURES = (0.01, 100.0)
"""The lowest and the highest temperature that a fit returns."""

SMALLEST = 1e-6
"""Probabilities are clamped to [1e-6, 1 - 1e-6] before their log-odds are taken."""

_HALVINGS = 60


def accuracy(decisions: ArrayLike, labels: ArrayLike) -> float:
    """Share of decisions that equal their labels."""
    made, truth = _pair(decisions, labels, bool)
    return float((made == truth).mean())


def auroc(scores: ArrayLike, labels: ArrayLike) -> float:
    """Chance that a positive outscores a negative, a tie counting half (Mann–Whitney U over pairs; exact)."""
    values, numbers = _pair(scores, labels, float)
    truth = numbers.astype(bool)
    _both(truth)
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


def expected_calibration_error(probabilities: ArrayLike, outcomes: ArrayLike, bins: int = 10) -> float:
    """Return the mean gap between probability and outcome over equal-width bins, weighted by their share of items.

    Args:
        probabilities: In [0, 1]; 1.0 falls in the last bin.
        outcomes: In [0, 1]; usually 0 or 1.
        bins: Number of bins.
    """
    values, truth = _pair(probabilities, outcomes, float)
    return float(weighted_calibration_error(np.column_stack([values, truth]), np.ones((1, len(values))), bins)[0])


def weighted_calibration_error(rows: np.ndarray, weights: np.ndarray, bins: int = 10) -> np.ndarray:
    """Return the `expected_calibration_error` of weighted questions, shape (resamples,).

    Args:
        rows: (probability, outcome): shape (questions, 2), or (questions, decisions, 2) padded with NaN.
        weights: Shape (resamples, questions).
        bins: Number of bins.
    """
    there = ~np.isnan(rows[..., 0])
    question, (values, truth) = np.nonzero(there)[0], rows[there].T
    _probable(values)
    places = np.minimum((values * bins).astype(int), bins - 1) + bins * question
    gaps = np.bincount(places, weights=values - truth, minlength=bins * len(rows)).reshape(-1, bins)
    return np.abs(weights @ gaps).sum(axis=1) / (weights @ np.bincount(question, minlength=len(rows)))


def fit_temperature(probabilities: ArrayLike, outcomes: ArrayLike) -> float:
    """Return a gate's temperature of maximum likelihood (Guo et al. 2017, arXiv 1706.04599, §4.2).

    It minimizes the negative log-likelihood of the outcomes under `scale_by_temperature`, which is convex in 1 / T: the
    root of its slope is found by bisection.

    Args:
        probabilities: In [0, 1].
        outcomes: In [0, 1]; usually 0 or 1, and not all equal.

    Returns:
        Above 1 for an overconfident gate, below 1 for an underconfident one. 1 if every probability is 0.5; a bound of
        `TEMPERATURES` if the likelihood still rises there: the lowest without errors, the highest at chance.

    Raises:
        ValueError: Outcomes are all equal, there is none, or a probability is not in [0, 1].
    """
    values, truth = _pair(probabilities, outcomes, float)
    _both(truth)
    order = np.lexsort((truth, values))  # sums in one order, so that the order of the input changes no bit
    log_odds, truth = _log_odds(values[order]), truth[order]
    if not log_odds.any():
        return 1.0
    low, high = np.log(TEMPERATURES)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        too_sure = np.sum(log_odds * (_sigmoid(log_odds / np.exp(middle)) - truth)) > 0
        low, high = (middle, high) if too_sure else (low, middle)
    return float(np.clip(np.exp((low + high) / 2), *TEMPERATURES))


def scale_by_temperature(probabilities: ArrayLike, temperature: float) -> np.ndarray:
    """Probabilities whose log-odds are divided by a temperature, same shape.

    Their order stays, and 0.5 stays 0.5: a decision at the threshold 0.5 is the same before and after, and so is AUROC.
    A decision at another threshold γ is the same only at the threshold that γ itself is scaled to.

    Args:
        probabilities: In [0, 1]; those nearer than `SMALLEST` to 0 or 1 count as that near.
        temperature: Above 0.

    Raises:
        ValueError: A probability is not in [0, 1], or the temperature is not above 0.
    """
    if not temperature > 0:
        raise ValueError(f"expected a temperature above 0, found {temperature}")
    return _sigmoid(_log_odds(np.asarray(probabilities, dtype=float)) / temperature)


def halves(groups: Sequence[str]) -> np.ndarray:
    """Return each row's half, shape (rows,), bool: by a hash of its group's name, so that a group stays together."""
    half = {name: int(fingerprint(name), 16) % 2 == 1 for name in set(groups)}
    return np.array([half[name] for name in groups], dtype=bool)


def cross_fit_temperature(probabilities: ArrayLike, outcomes: ArrayLike, half: ArrayLike) -> np.ndarray:
    """Scale probabilities, each by the temperature fitted on the other half, shape (rows,).

    Args:
        probabilities: In [0, 1].
        outcomes: In [0, 1]; usually 0 or 1, and not all equal in either half.
        half: Half of each row, from `halves`.

    Raises:
        ValueError: A half is empty or its outcomes are all equal, or a probability is not in [0, 1].
    """
    values, truth = _pair(probabilities, outcomes, float)
    second = _pair(values, half, float)[1].astype(bool)
    scaled = np.empty_like(values)
    for side in (second, ~second):
        scaled[side] = scale_by_temperature(values[side], fit_temperature(values[~side], truth[~side]))
    return scaled


def risk_coverage(confidences: ArrayLike, correct: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """Error rate among the most confident answers, against the share of answers that they make up.

    Returns:
        (coverage, risk), each of shape (distinct confidences,), coverage rising to 1. Answers of equal confidence enter
        together, since no threshold can part them.
    """
    values, right = _pair(confidences, correct, float)
    order = np.argsort(-values, kind="stable")
    ranked, errors = values[order], np.cumsum(1 - right[order])
    ends = np.flatnonzero(np.append(ranked[1:] != ranked[:-1], True))
    return (ends + 1) / len(values), errors[ends] / (ends + 1)


def _pair(first: ArrayLike, second: ArrayLike, kind: DTypeLike) -> tuple[np.ndarray, np.ndarray]:
    one: np.ndarray = np.asarray(first, dtype=kind)
    other: np.ndarray = np.asarray(second, dtype=kind)
    if one.ndim != 1 or one.shape != other.shape or not len(one):
        raise ValueError(f"expected two 1-D arrays of one length, at least 1; found shapes {one.shape}, {other.shape}")
    if np.isnan(one).any() or np.isnan(other).any():
        raise ValueError(f"expected numbers, found {np.isnan(one).sum() + np.isnan(other).sum()} NaN")
    return one, other


def _both(truth: np.ndarray) -> None:
    if (truth == truth[0]).all():
        raise ValueError(f"expected positives and negatives, found {len(truth)} labels that are all {truth[0]}")


def _probable(values: np.ndarray) -> None:
    if not ((values >= 0) & (values <= 1)).all():
        raise ValueError(f"expected probabilities in [0, 1], found {values.min()} to {values.max()}")


def _log_odds(probabilities: np.ndarray) -> np.ndarray:
    _probable(probabilities)
    clamped = np.clip(probabilities, SMALLEST, 1 - SMALLEST)
    return np.log(clamped) - np.log1p(-clamped)


def _sigmoid(values: np.ndarray) -> np.ndarray:
    return (1 + np.tanh(values / 2)) / 2  # no exponential overflows

"""How well a decision, or the probability behind it, agrees with the truth. All inputs are 1-D and equally long."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, DTypeLike


def accuracy(decisions: ArrayLike, labels: ArrayLike) -> float:
    """Share of decisions that equal their labels."""
    made, truth = _pair(decisions, labels, bool)
    return float((made == truth).mean())


def balanced_accuracy(decisions: ArrayLike, labels: ArrayLike) -> float:
    """Mean of the share of positives accepted and the share of negatives rejected; 0.5 is chance."""
    made, truth = _pair(decisions, labels, bool)
    _both(truth)
    return float(made[truth].mean() + (~made[~truth]).mean()) / 2


def auroc(scores: ArrayLike, labels: ArrayLike) -> float:
    """Chance that a positive outscores a negative, a tie counting half (Mann–Whitney U over pairs; exact)."""
    values, numbers = _pair(scores, labels, float)
    truth = numbers.astype(bool)
    _both(truth)
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[places]
    positives = int(truth.sum())
    pairs = positives * (len(truth) - positives)
    return float((ranks[truth].sum() - positives * (positives + 1) / 2) / pairs)


def expected_calibration_error(probabilities: ArrayLike, outcomes: ArrayLike, bins: int = 10) -> float:
    """Mean gap between probability and outcome over equal-width bins, weighted by their share of items.

    Args:
        probabilities: In [0, 1]; 1.0 falls in the last bin.
        outcomes: What happened, in [0, 1]; usually 0 or 1.
        bins: How many bins.
    """
    values, truth = _pair(probabilities, outcomes, float)
    if values.min() < 0 or values.max() > 1:
        raise ValueError(f"expected probabilities in [0, 1], found {values.min()} to {values.max()}")
    places = np.minimum((values * bins).astype(int), bins - 1)
    gaps = np.bincount(places, weights=values - truth, minlength=bins)
    return float(np.abs(gaps).sum() / len(values))


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
    if truth.all() or not truth.any():
        raise ValueError(f"expected positives and negatives, found {len(truth)} labels that are all {bool(truth[0])}")

"""Points of curves: gate and relevance thresholds, risk against coverage, and calibration."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from reflectune.metrics.reporting import gates

Points = list[tuple[float, float]]

THRESHOLDS = np.linspace(0.0, 1.0, 101)
MAX_POINTS = 200


def share_at_least(probabilities: Sequence[float]) -> Points:
    """Return (threshold, share of probabilities ≥ it), which a gate with that γ lets through."""
    values = np.sort(np.asarray(probabilities, dtype=float))
    if not len(values):
        return []
    shares = 1.0 - np.searchsorted(values, THRESHOLDS, side="left") / len(values)
    return list(zip(THRESHOLDS.tolist(), shares.tolist(), strict=True))


def accuracy_at(probabilities: Sequence[float], labels: Sequence[bool]) -> Points:
    """Return (threshold, share of items for which `probability ≥ threshold` equals the label)."""
    values, truth = np.asarray(probabilities, dtype=float), np.asarray(labels, dtype=bool)
    if not len(values):
        return []
    return [(float(t), float(np.mean((values >= t) == truth))) for t in THRESHOLDS]


def balanced_accuracy_at(positives: Sequence[float], negatives: Sequence[float]) -> Points:
    """Return (threshold, mean of the share of positives ≥ it and the share of negatives < it)."""
    accepted, passed = share_at_least(positives), share_at_least(negatives)
    return [(t, (yes + 1.0 - no) / 2) for (t, yes), (_, no) in zip(accepted, passed, strict=False)]


def risk_coverage(confidences: Sequence[float], correct: Sequence[float]) -> Points:
    """Return (coverage, error rate of the most confident answers that make up this share), thinned to `MAX_POINTS`."""
    if not len(confidences):
        return []
    coverage, risk = gates.risk_coverage(confidences, correct)
    keep = np.unique(np.linspace(0, len(coverage) - 1, min(MAX_POINTS, len(coverage))).round().astype(int))
    return [(float(coverage[i]), float(risk[i])) for i in keep]


def calibration(probabilities: Sequence[float], outcomes: Sequence[float]) -> Points:
    """Return (mean probability, mean outcome) of each equal-width bin that holds an item."""
    values, truth = np.asarray(probabilities, dtype=float), np.asarray(outcomes, dtype=float)
    bin_of = gates.bins_of(values)
    filled = [bin_of == number for number in np.unique(bin_of)]
    return [(float(values[inside].mean()), float(truth[inside].mean())) for inside in filled]

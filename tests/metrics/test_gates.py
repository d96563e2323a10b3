from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reflectune.metrics import gates

MIXED = st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=2).filter(
    lambda rows: len({y for _, y in rows}) == 2
)


def test_accuracy_and_balanced_accuracy() -> None:
    decisions, labels = [True, True, True, False], [True, True, True, True]
    assert gates.accuracy(decisions, labels) == 0.75
    decisions, labels = [True, True, True, True], [True, True, True, False]
    assert gates.accuracy(decisions, labels) == 0.75
    assert gates.balanced_accuracy(decisions, labels) == 0.5
    assert gates.balanced_accuracy([True, False, False], [True, True, False]) == 0.75


@given(MIXED)
def test_auroc_is_the_share_of_pairs_in_order_with_ties_counting_half(rows: list[tuple[int, bool]]) -> None:
    positives, negatives = ([s for s, y in rows if y is label] for label in (True, False))
    pairs = [(p > n) + (p == n) / 2 for p in positives for n in negatives]
    scores, labels = zip(*rows, strict=True)
    assert gates.auroc(scores, labels) == pytest.approx(np.mean(pairs))
    assert gates.auroc(-np.array(scores), labels) == pytest.approx(1 - np.mean(pairs))


def test_auroc_of_ranked_and_of_tied_scores() -> None:
    assert gates.auroc([0.1, 0.2, 0.8, 0.9], [False, False, True, True]) == 1.0
    assert gates.auroc([0.5, 0.5, 0.5], [False, True, True]) == 0.5


def test_calibration_error_by_hand() -> None:
    probabilities, outcomes = [0.05, 0.05, 0.95, 1.0], [0, 1, 1, 1]
    wanted = 0.5 * abs(0.05 - 0.5) + 0.5 * abs(0.975 - 1.0)
    assert gates.expected_calibration_error(probabilities, outcomes) == pytest.approx(wanted)
    assert gates.expected_calibration_error([0.05, 0.95], [1, 0]) == pytest.approx(0.95)  # gaps of either sign add up
    assert gates.expected_calibration_error([0.25] * 4, [0, 0, 0, 1]) == pytest.approx(0.0)
    assert gates.expected_calibration_error([0.0, 1.0], [1, 0], bins=1) == pytest.approx(0.0)


def test_risk_coverage_lets_equal_confidences_enter_together() -> None:
    coverage, risk = gates.risk_coverage([0.9, 0.5, 0.5, 0.1], [1, 0, 1, 0])
    assert coverage.tolist() == [0.25, 0.75, 1.0]
    assert risk.tolist() == pytest.approx([0.0, 1 / 3, 0.5])


@given(st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1))
def test_risk_at_full_coverage_is_the_error_rate(rows: list[tuple[float, bool]]) -> None:
    confidences, correct = zip(*rows, strict=True)
    coverage, risk = gates.risk_coverage(confidences, correct)
    assert coverage[-1] == 1.0
    assert risk[-1] == pytest.approx(1 - np.mean(correct))
    assert (np.diff(coverage) > 0).all()


def test_what_is_undefined_is_refused() -> None:
    with pytest.raises(ValueError, match="positives and negatives"):
        gates.auroc([0.1, 0.2], [True, True])
    with pytest.raises(ValueError, match="positives and negatives"):
        gates.balanced_accuracy([True], [False])
    with pytest.raises(ValueError, match="1-D arrays"):
        gates.accuracy([], [])
    with pytest.raises(ValueError, match=r"\[0, 1\]"):
        gates.expected_calibration_error([1.5], [1])
    for measure in (gates.auroc, gates.expected_calibration_error, gates.risk_coverage):
        with pytest.raises(ValueError, match="1 NaN"):
            measure([0.5, float("nan")], [True, False])

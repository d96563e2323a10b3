import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reflectune.inference.report import curves

values = st.lists(st.floats(0.0, 1.0), min_size=1, max_size=30)


def at(points: curves.Points, *hundredths: int) -> list[float]:
    """Return the values at these thresholds."""
    assert [points[place][0] for place in hundredths] == pytest.approx([place / 100 for place in hundredths])
    return [points[place][1] for place in hundredths]


def test_share_at_least_counts_the_threshold_itself() -> None:
    shares = at(curves.share_at_least([0.2, 0.5, 0.9]), 0, 20, 50, 51, 100)
    assert shares == pytest.approx([1.0, 1.0, 2 / 3, 1 / 3, 0.0])
    assert curves.share_at_least([]) == []


@given(values)
def test_a_higher_threshold_lets_less_through(probabilities: list[float]) -> None:
    shares = [share for _, share in curves.share_at_least(probabilities)]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] == 1.0


def test_accuracy_at_compares_with_the_label() -> None:
    points = curves.accuracy_at([0.1, 0.6, 0.7, 0.9], [False, False, True, True])
    assert at(points, 0, 65, 95) == [0.5, 1.0, 0.5]


def test_balanced_accuracy_weighs_both_sides_alike() -> None:
    points = curves.balanced_accuracy_at([0.9], [0.1, 0.2, 0.3, 0.8])
    assert at(points, 0, 50, 100) == [0.5, pytest.approx((1.0 + 0.75) / 2), 0.5]


def test_risk_coverage_starts_with_the_most_confident_and_ends_with_the_error_rate() -> None:
    points = curves.risk_coverage([0.2, 0.9, 0.5, 0.7], [0, 1, 0, 1])
    assert points == [(0.25, 0.0), (0.5, 0.0), (0.75, pytest.approx(1 / 3)), (1.0, 0.5)]


@given(st.integers(1, 900))
def test_risk_coverage_is_thinned_and_keeps_the_end(count: int) -> None:
    points = curves.risk_coverage(np.linspace(0, 1, count), np.ones(count))
    assert len(points) == min(count, curves.MAX_POINTS)
    assert points[-1] == (1.0, 0.0)


def test_calibration_bins_hold_the_mean_of_both() -> None:
    points = curves.calibration([0.11, 0.19, 0.95, 1.0], [0, 1, 1, 1])
    assert points == [(pytest.approx(0.15), 0.5), (pytest.approx(0.975), 1.0)]

import itertools
from dataclasses import astuple
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reflectune.metrics.reporting import gates
from reflectune.models.schemes.calibration import GateScaling, beta_features

MIXED, BINARY = (
    st.lists(st.tuples(scores, st.booleans()), min_size=2).filter(lambda rows: len({y for _, y in rows}) == 2)
    for scores in (st.integers(0, 5), st.floats(0, 1))
)


@given(MIXED)
def test_auroc_is_the_share_of_pairs_in_order_with_ties_counting_half(rows: list[tuple[int, bool]]) -> None:
    positives, negatives = ([s for s, y in rows if y is label] for label in (True, False))
    pairs = [(p > n) + (p == n) / 2 for p in positives for n in negatives]
    scores, labels = zip(*rows, strict=True)
    assert gates.auroc(scores, labels) == pytest.approx(np.mean(pairs))
    assert gates.auroc(-np.array(scores), labels) == pytest.approx(1 - np.mean(pairs))


def test_calibration_error_by_hand() -> None:
    probabilities, outcomes = [0.05, 0.05, 0.95, 1.0], [0, 1, 1, 1]
    wanted = 0.5 * abs(0.05 - 0.5) + 0.5 * abs(0.975 - 1.0)
    assert gates.expected_calibration_error(probabilities, outcomes) == pytest.approx(wanted)
    assert gates.expected_calibration_error([0.05, 0.95], [1, 0]) == pytest.approx(0.95)  # gaps of either sign add up
    assert gates.expected_calibration_error([0.25] * 4, [0, 0, 0, 1]) == pytest.approx(0.0)


@pytest.mark.parametrize(
    ("of_rows", "weighted"),
    [(gates.auroc, gates.weighted_auroc), (gates.expected_calibration_error, gates.weighted_calibration_error)],
)
def test_a_weight_counts_a_row_so_often(of_rows, weighted) -> None:
    generator = np.random.default_rng(0)
    rows = np.column_stack([generator.integers(6, size=30) / 5, np.arange(30) % 3 == 0])
    weights = generator.integers(1, 4, size=(5, 30))
    wanted = [of_rows(*np.repeat(rows, counts, axis=0).T) for counts in weights]
    assert weighted(rows, weights.astype(float)) == pytest.approx(wanted)


def test_decisions_of_a_question_are_weighted_together() -> None:
    rows = np.array([[(0.05, 1), (0.95, 0)], [(0.25, 0), (np.nan, np.nan)]])
    errors = gates.weighted_calibration_error(rows, np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 2.0]]))
    assert errors == pytest.approx([0.95, 0.25, (2 * 0.95 + 2 * 0.25) / 4])


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
    with pytest.raises(ValueError, match="1-D arrays"):
        gates.accuracy([], [])
    with pytest.raises(ValueError, match=r"\[0, 1\]"):
        gates.expected_calibration_error([1.5], [1])
    for measure in (gates.auroc, gates.expected_calibration_error, gates.risk_coverage):
        with pytest.raises(ValueError, match="1 NaN"):
            measure([0.5, float("nan")], [True, False])


def drawn(scaling: GateScaling, seed: int = 0, rows: int = 20_000) -> tuple[np.ndarray, np.ndarray]:
    """Return probabilities, which a scaling turns into those that labels were drawn by, and the labels."""
    generator = np.random.default_rng(seed)
    log_odds = generator.normal(scale=2, size=rows)
    probabilities = 1 / (1 + np.exp(-log_odds))
    return scaling.undo(probabilities), generator.random(rows) < probabilities


@pytest.mark.parametrize(
    "wanted", [GateScaling(2, 2, 0), GateScaling(), GateScaling(0.3, 0.3, 0), GateScaling(0.9, 0.3, -0.7)]
)
def test_the_scales_and_bias_of_log_odds_are_found(wanted: GateScaling) -> None:
    probabilities, labels = drawn(wanted)
    fitted = gates.fit_scaling(probabilities, labels)
    assert astuple(fitted) == pytest.approx(astuple(wanted), rel=0.1, abs=0.25)
    assert gates.expected_calibration_error(fitted.apply(probabilities), labels) < 0.02
    if wanted != GateScaling():
        assert gates.expected_calibration_error(probabilities, labels) > 0.08


@pytest.mark.parametrize("wanted", [0.5, 1.0, 3.0])
def test_the_temperature_of_log_odds_is_found(wanted: float) -> None:
    probabilities, labels = drawn(GateScaling(1 / wanted, 1 / wanted, 0))
    assert gates.fit_temperature(probabilities, labels) == pytest.approx(wanted, rel=0.1)
    assert 0.2 < gates.fit_temperature([0.9, 0.1] * 20, [True, False] * 20) < 1
    assert gates.fit_temperature([0.9, 0.1] * 20, [False, True] * 20) == 1 / gates.LEAST_SCALE


def test_a_fit_without_a_maximum_of_likelihood_stays_near_the_gate() -> None:
    without_errors = gates.fit_scaling([0.9, 0.1] * 20, [True, False] * 20)
    assert 1 < without_errors.scale_no < 5
    assert without_errors.scale_yes == pytest.approx(without_errors.scale_no)
    always_wrong = gates.fit_scaling([0.9, 0.1] * 20, [False, True] * 20)
    assert (always_wrong.scale_no, always_wrong.scale_yes) == (gates.LEAST_SCALE, gates.LEAST_SCALE)
    wrong_yes = gates.fit_scaling([0.9, 0.6, 0.4, 0.1] * 9, [False, True, False, False] * 9)
    assert wrong_yes.scale_yes == gates.LEAST_SCALE < wrong_yes.scale_no


@given(BINARY)
def test_no_other_scaling_is_likelier(rows: list[tuple[float, bool]]) -> None:
    probabilities, labels = map(np.array, zip(*rows, strict=True))

    def loss(*weights: float) -> float:
        z = beta_features(probabilities) @ weights
        prior = np.sum((np.array(weights) - (1, 1, 0)) ** 2) / 2
        return np.logaddexp(0, np.where(labels, -z, z)).sum() + prior

    best = astuple(gates.fit_scaling(probabilities, labels))
    near = itertools.product((0.5, 0.99, 1, 1.01, 2), (0.5, 0.99, 1, 1.01, 2), (-2, -0.01, 0, 0.01, 2))
    others = [(best[0] * a, best[1] * b, best[2] + c) for a, b, c in near]
    others += itertools.product((0.01, 1, 10), (0.01, 1, 10), (-5, 0, 5))
    assert all(loss(*best) <= loss(*other) + 1e-9 for other in others if min(other[:2]) >= gates.LEAST_SCALE)


@given(BINARY, st.randoms(use_true_random=False))
def test_the_order_of_rows_does_not_matter(rows: list[tuple[float, bool]], random: Random) -> None:
    probabilities, labels = zip(*rows, strict=True)
    shuffled, shuffled_labels = zip(*random.sample(rows, len(rows)), strict=True)
    assert gates.fit_scaling(probabilities, labels) == gates.fit_scaling(shuffled, shuffled_labels)


def test_halves_keep_groups_together_and_go_by_names_alone() -> None:
    groups = [f"e{number}" for number in range(400)]
    half = gates.halves(groups)
    assert 150 < half.sum() < 250
    assert gates.halves([*groups[::-1], *groups]).tolist() == [*half[::-1], *half]


def test_a_cross_fit_never_fits_on_what_it_measures() -> None:
    probabilities, labels = drawn(GateScaling(1 / 3, 1 / 3), rows=200)
    half = np.arange(200) % 3 == 0
    scaled = gates.cross_fit(probabilities, labels, half)
    other = gates.cross_fit(probabilities, np.where(half, ~labels, labels), half)
    assert (scaled[half] == other[half]).all()  # whose own labels changed
    assert not np.isclose(scaled[~half], other[~half]).all()  # which are scaled by those labels
    first = gates.fit_scaling(probabilities[~half], labels[~half])
    assert (scaled[half] == first.apply(probabilities[half])).all()


def test_a_scaling_that_cannot_be_fitted_is_refused() -> None:
    with pytest.raises(ValueError, match="positives and negatives"):
        gates.fit_scaling([0.1, 0.9], [True, True])
    with pytest.raises(ValueError, match="at least 1"):
        gates.fit_scaling([], [])
    with pytest.raises(ValueError, match=r"\[0, 1\]"):
        gates.fit_scaling([1.5, 0.5], [True, False])
    with pytest.raises(ValueError, match="positives and negatives"):
        gates.cross_fit([0.1, 0.9, 0.5], [True, False, True], [True, True, False])
    with pytest.raises(ValueError, match="at least 1"):
        gates.cross_fit([0.1, 0.9], [True, False], [True, True])

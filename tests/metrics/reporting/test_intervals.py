import numpy as np
import pytest

from reflectune.metrics.official import infoseek
from reflectune.metrics.reporting import intervals
from reflectune.metrics.reporting.intervals import (
    bootstrap_interval,
    paired_bootstrap,
    permutation_test,
)

VALUES = np.random.default_rng(0).random(400) < 0.3


def split_overall(rows: np.ndarray) -> float:
    """InfoSeek's overall score of rows (is unseen question, score)."""
    half = rows[:, 0] == 1
    return infoseek.overall(rows[half, 1].mean(), rows[~half, 1].mean())


def test_the_interval_of_a_share_is_near_the_normal_one() -> None:
    low, high = bootstrap_interval(VALUES, seed=0, n=4000)
    half = 1.96 * np.sqrt(VALUES.mean() * (1 - VALUES.mean()) / len(VALUES))
    assert (low, high) == pytest.approx((VALUES.mean() - half, VALUES.mean() + half), abs=0.006)


def test_the_default_is_the_mean_and_the_seed_decides() -> None:
    assert bootstrap_interval(VALUES, seed=3) == bootstrap_interval(VALUES, lambda rows: float(rows.mean()), seed=3)
    assert bootstrap_interval(VALUES, seed=3) != bootstrap_interval(VALUES, seed=4)


def test_a_higher_level_is_wider() -> None:
    narrow, wide = (bootstrap_interval(VALUES, seed=0, level=level) for level in (0.5, 0.99))
    assert wide[0] < narrow[0] < narrow[1] < wide[1]


def test_constant_values_have_no_width() -> None:
    assert bootstrap_interval(np.ones(9), seed=0) == (1.0, 1.0)


def test_a_stratum_keeps_its_size_in_each_resample() -> None:
    labels = np.array(["b", "a", "a", "b", "c"])
    sizes = []

    def note_sizes(rows: np.ndarray) -> float:
        sizes.append(tuple(np.unique(rows, return_counts=True)[1]))
        return 0.0

    bootstrap_interval(labels, note_sizes, seed=0, n=50, strata=labels)
    assert sizes == 50 * [(2, 2, 1)]
    assert bootstrap_interval([1.0, 5.0, 5.0, 1.0], seed=0, strata=[0, 1, 1, 0]) == (3.0, 3.0)


def test_the_harmonic_mean_of_two_splits_over_stratified_resamples() -> None:
    rows = np.column_stack([np.arange(400) < 40, VALUES])
    low, high = bootstrap_interval(rows, split_overall, seed=0, strata=rows[:, 0])
    assert low < split_overall(rows) < high


def test_blocks_bound_memory_and_do_not_change_the_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = bootstrap_interval(VALUES, seed=0, n=100)
    monkeypatch.setattr(intervals, "INDICES_AT_ONCE", 7 * len(VALUES))
    assert bootstrap_interval(VALUES, seed=0, n=100) == whole


def test_pairing_cancels_what_two_systems_share() -> None:
    better = VALUES | (np.arange(400) % 20 == 0)
    difference = paired_bootstrap(better, VALUES, seed=0)
    assert difference.value == pytest.approx(better.mean() - VALUES.mean())
    assert 0 < difference.low < difference.value < difference.high
    assert difference.share_not_above == 0.0
    alone = bootstrap_interval(better, seed=0)
    assert difference.high - difference.low < alone[1] - alone[0]
    assert paired_bootstrap(VALUES, better, seed=0).low == pytest.approx(-difference.high)


def test_a_system_does_not_differ_from_itself() -> None:
    difference = paired_bootstrap(VALUES, VALUES, seed=0)
    assert (difference.value, difference.low, difference.high, difference.share_not_above) == (0.0, 0.0, 0.0, 1.0)


def test_p_is_that_of_the_sign_test_where_systems_differ_on_few_questions() -> None:
    """Of 8 differing questions all favour one side: two-sided, 2 of 2^8 swaps differ as much."""
    first, second = np.zeros(50), np.zeros(50)
    first[:8] = 1
    assert permutation_test(first, second, seed=0, n=40_000) == pytest.approx(2 / 2**8, rel=0.2)


def test_p_of_equal_systems_is_one_and_never_zero() -> None:
    assert permutation_test(VALUES, VALUES, seed=0) == 1.0
    assert permutation_test(np.ones(300), np.zeros(300), seed=0, n=99) == 1 / 100
    assert permutation_test(np.zeros(300), np.ones(300), seed=0, n=99) == 1 / 100


def test_p_is_uniform_where_nothing_differs() -> None:
    generator = np.random.default_rng(1)
    p_values = [permutation_test(*generator.random((2, 40)), seed=seed, n=199) for seed in range(200)]
    assert np.mean(np.array(p_values) <= 0.1) == pytest.approx(0.1, abs=0.06)


def test_p_of_a_given_statistic_equals_that_of_the_mean() -> None:
    first, second = np.random.default_rng(2).random((2, 60))
    mean = permutation_test(first, second, seed=0)
    assert permutation_test(first, second, lambda rows: float(rows.mean()), seed=0) == mean
    columns = [np.column_stack([np.zeros(60), values]) for values in (first, second)]
    assert permutation_test(*columns, lambda rows: float(rows[:, 1].mean()), seed=0) == mean


@pytest.mark.parametrize(
    ("measure", "rows", "settings", "said"),
    [
        (permutation_test, [np.ones(3), np.ones(2)], {}, "same questions"),
        (permutation_test, [[], []], {}, "at least one question"),
        (permutation_test, [np.ones((3, 2))] * 2, {}, "give a statistic"),
        (bootstrap_interval, [[]], {}, "at least one question"),
        (bootstrap_interval, [np.ones((3, 2))], {}, "give a statistic"),
        (bootstrap_interval, [np.ones(3)], {"strata": [0, 1]}, "stratum"),
        (bootstrap_interval, [np.ones(3)], {"statistic": lambda rows: float("nan")}, "not finite"),
        (paired_bootstrap, [np.ones(3), np.ones(2)], {}, "same questions"),
    ],
)
def test_what_is_undefined_is_refused(measure, rows, settings, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        measure(*rows, seed=0, **settings)

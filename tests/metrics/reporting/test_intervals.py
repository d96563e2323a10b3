import numpy as np
import pytest

from reflectune.core.types import Question
from reflectune.metrics.reporting import intervals
from reflectune.metrics.reporting.intervals import (
    Estimate,
    average,
    draw_weights,
    entities,
    over_seeds,
    permutation_test,
    units,
)

VALUES = np.random.default_rng(0).random(400) < 0.3


def bootstrap_interval(values, statistic=average, **settings) -> tuple[float, float]:
    estimate = over_seeds([values], statistic, **settings)
    return estimate.low, estimate.high


def paired_bootstrap(first, second, **settings) -> Estimate:
    return over_seeds([first], against=[second], **settings)


def total(rows: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """The mean of 1-D rows, as a statistic that is not known to be one."""
    return weights @ rows / weights.sum(axis=1)


def test_the_interval_of_a_share_is_near_the_normal_one() -> None:
    low, high = bootstrap_interval(VALUES, seed=0, n=4000)
    half = 1.96 * np.sqrt(VALUES.mean() * (1 - VALUES.mean()) / len(VALUES))
    assert (low, high) == pytest.approx((VALUES.mean() - half, VALUES.mean() + half), abs=0.006)


def test_the_default_is_the_mean_and_the_seed_decides() -> None:
    assert bootstrap_interval(VALUES, seed=3) == pytest.approx(bootstrap_interval(VALUES, total, seed=3))
    assert bootstrap_interval(VALUES, seed=3) != bootstrap_interval(VALUES, seed=4)


def test_a_stratum_keeps_its_size_in_each_resample() -> None:
    labels = np.array(["b", "a", "a", "b", "c"])
    (weights,), counts = draw_weights(5, np.random.default_rng(0), 50, labels), [("a", 2), ("b", 2), ("c", 1)]
    assert all((weights[:, labels == label].sum(axis=1) == count).all() for label, count in counts)
    assert len({tuple(row) for row in weights}) > 1
    assert bootstrap_interval([1.0, 5.0, 5.0, 1.0], seed=0, strata=[0, 1, 1, 0]) == (3.0, 3.0)


def test_blocks_bound_memory_and_do_not_change_the_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = bootstrap_interval(VALUES, seed=0, n=100)
    monkeypatch.setattr(intervals, "WEIGHTS_AT_ONCE", 7 * len(VALUES))
    assert bootstrap_interval(VALUES, seed=0, n=100) == whole


def test_pairing_cancels_what_two_systems_share() -> None:
    better = VALUES | (np.arange(400) % 20 == 0)
    difference = paired_bootstrap(better, VALUES, seed=0)
    assert difference.value == pytest.approx(better.mean() - VALUES.mean())
    assert 0 < difference.low < difference.value < difference.high
    alone = bootstrap_interval(better, seed=0)
    assert difference.high - difference.low < alone[1] - alone[0]
    assert paired_bootstrap(VALUES, better, seed=0).low == pytest.approx(-difference.high)


def test_asking_each_question_again_narrows_nothing() -> None:
    """Four questions on each entity that are answered alike are one draw: intervals and p are those of one of them."""
    other = np.random.default_rng(1).random(400) < 0.35
    again = {"clusters": np.repeat(np.arange(400), 4)}
    first, second = np.repeat(VALUES, 4), np.repeat(other, 4)
    assert bootstrap_interval(first, seed=0, **again) == pytest.approx(bootstrap_interval(VALUES, seed=0))
    assert paired_bootstrap(first, second, seed=0, **again) == paired_bootstrap(VALUES, other, seed=0)
    assert permutation_test(first, second, seed=0, **again) == permutation_test(VALUES, other, seed=0)
    by_question = bootstrap_interval(first, seed=0)
    assert by_question[1] - by_question[0] < 0.6 * np.diff(bootstrap_interval(first, seed=0, **again))


def test_a_resample_draws_whole_entities_within_each_stratum() -> None:
    clusters, strata = np.array(["x", "y", "x", "y", "y", "z"]), np.array([0, 0, 0, 1, 1, 1])
    (weights,) = draw_weights(6, np.random.default_rng(0), 200, strata, clusters)
    assert (weights[:, [0, 3]] == weights[:, [2, 4]]).all()  # questions of an entity in a stratum go together
    assert ((weights[:, 0] + weights[:, 1] == 2) & (weights[:, 3] + weights[:, 5] == 2)).all()
    assert (weights[:, 1] != weights[:, 3]).any()  # an entity of two strata is drawn in each by itself


def test_a_stratum_with_one_entity_alone_is_not_taken_for_certain() -> None:
    one = bootstrap_interval(VALUES[:50], seed=0, clusters=["e"] * 50)
    assert one == bootstrap_interval(VALUES[:50], seed=0)
    assert one[0] < VALUES[:50].mean() < one[1]


def test_the_order_of_questions_does_not_matter_to_their_entities() -> None:
    clusters, backwards = np.array([f"e{i % 90}" for i in range(400)]), slice(None, None, -1)
    forth = bootstrap_interval(VALUES, seed=0, clusters=clusters)
    assert bootstrap_interval(VALUES[backwards], seed=0, clusters=clusters[backwards]) == pytest.approx(forth)


def test_a_question_belongs_to_the_entity_of_its_image_else_to_itself() -> None:
    named = [("a", ("e1",)), ("b", ("e2", "e1")), ("c", ()), ("d", ("e2",))]
    questions = [Question(key, "", "?", entity_ids=ids) for key, ids in named]
    assert entities(questions) == ["e1", "e2", "c", "e2"]
    assert [units(questions), units(questions[:1]), units(questions[2:3]), units([])] == [
        *("2 entities and 1 questions", "1 entities", "1 questions", "no questions"),
    ]


def test_equal_seeds_add_nothing_and_seeds_that_disagree_widen() -> None:
    once = paired_bootstrap(VALUES, np.zeros(400), seed=0)
    assert over_seeds([VALUES] * 3, against=[np.zeros(400)] * 3, seed=0) == once
    steady, shaky = over_seeds([VALUES] * 3, seed=0), over_seeds([VALUES, VALUES * 0.2, VALUES * 1.8], seed=0)
    assert shaky.value == pytest.approx(steady.value)
    assert shaky.high - shaky.low > 2 * (steady.high - steady.low)


def test_seeds_alone_are_the_bootstrap_of_their_scores() -> None:
    """With equal answers to all questions the mean of two seeds is 0, 1/2, or 1, with chances 1/4, 1/2, 1/4."""
    runs = [np.zeros(50), np.ones(50)]
    assert over_seeds(runs, seed=0) == intervals.Estimate(0.5, 0.0, 1.0)


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
    assert permutation_test(first, second, total, seed=0) == mean
    columns = [np.column_stack([np.zeros(60), values]) for values in (first, second)]
    assert permutation_test(*columns, lambda rows, weights: total(rows[:, 1], weights), seed=0) == mean


@pytest.mark.parametrize(
    ("measure", "rows", "settings", "said"),
    [
        (permutation_test, [np.ones(3), np.ones(2)], {}, "same questions"),
        (permutation_test, [[], []], {}, "at least one question"),
        (permutation_test, [np.ones((3, 2))] * 2, {}, "give a statistic"),
        (bootstrap_interval, [[]], {}, "at least one question"),
        (bootstrap_interval, [np.ones((3, 2))], {}, "give a statistic"),
        (bootstrap_interval, [np.ones(3)], {"strata": [0, 1]}, "stratum"),
        (permutation_test, [np.ones(3), np.ones(3)], {"clusters": ["e"]}, "cluster a question"),
        (over_seeds, [[np.ones(3), np.ones(3)], total, [np.ones(3)]], {}, "same questions and seeds"),
        (
            bootstrap_interval,
            [np.ones(3)],
            {"statistic": lambda rows, weights: np.full(len(weights), np.nan)},
            "not finite",
        ),
        (paired_bootstrap, [np.ones(3), np.ones(2)], {}, "same questions"),
    ],
)
def test_what_is_undefined_is_refused(measure, rows, settings, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        measure(*rows, seed=0, **settings)

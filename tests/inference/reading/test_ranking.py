import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reflectune.inference.reading.ranking import (
    FULL,
    RANKINGS,
    PassageScores,
    best,
    choice_weights,
    entry_shares,
    product,
    shift_relevance,
)

probabilities = st.floats(0.0, 1.0)
cosines = st.floats(-1.0, 1.0)
scores = st.builds(PassageScores, ret=cosines, rel=probabilities, ans=probabilities)


@given(similarities=st.lists(cosines, min_size=1, max_size=20), temperature=st.floats(1e-3, 10.0))
def test_entries_share_one_in_the_order_of_their_similarities(similarities: list[float], temperature: float) -> None:
    shares = entry_shares(similarities, temperature)
    assert sum(shares) == pytest.approx(1.0)
    assert [shares[i] for i in sorted(range(len(shares)), key=similarities.__getitem__)] == sorted(shares)


def test_a_lower_temperature_tells_close_entries_apart() -> None:
    assert entry_shares([0.8, 0.7], 0.1) == pytest.approx([1 / (1 + math.exp(-1)), 1 / (1 + math.exp(1))])
    assert entry_shares([0.8, 0.7], 0.01)[0] > 0.9999
    assert entry_shares([900.0, 0.0], 0.01) == [1.0, 0.0]  # a ranking's scores need not be cosines
    assert entry_shares([], 0.1) == []


TABLE_5 = {
    "random": 1.0,
    "ans": 0.25,
    "ret": 0.5,
    "rel": 0.8,
    "ret*ans": 0.125,
    "rel*ans": 0.2,
    "ret*rel": 0.4,
    "full": 0.1,
}
"""The product of each row, for S_ret 0.5, S_rel 0.8 and S_ans 0.25."""


def test_each_row_of_table_5_multiplies_the_scores_in_its_name() -> None:
    assert list(RANKINGS) == list(TABLE_5)
    scores = PassageScores(ret=0.5, rel=0.8, ans=0.25)
    assert {ranking: product(scores, ranking) for ranking in RANKINGS} == pytest.approx(TABLE_5)


def test_a_negative_similarity_does_not_turn_a_product_round() -> None:
    strong, weak = PassageScores(ret=-0.5, rel=0.9, ans=0.9), PassageScores(ret=-0.5, rel=0.1, ans=0.1)
    assert product(strong) == product(weak) == 0.0
    assert best([weak, strong]) == 1  # the tie at 0 is broken by S_rel, not by the sign


def test_the_three_levels_disagree_and_each_ranking_follows_its_own() -> None:
    by_ret, by_rel, by_ans = PassageScores(0.9, 0.2, 0.2), PassageScores(0.2, 0.9, 0.2), PassageScores(0.2, 0.2, 0.9)
    candidates = [by_ret, by_rel, by_ans]
    assert choice_weights(candidates, "ret") == [1.0, 0.0, 0.0]
    assert choice_weights(candidates, "rel") == [0.0, 1.0, 0.0]
    assert choice_weights(candidates, "ans") == [0.0, 0.0, 1.0]
    assert choice_weights(candidates, "random") == pytest.approx([1 / 3] * 3)
    assert choice_weights(candidates, "ret*rel") == [0.5, 0.5, 0.0]


def test_no_candidates_have_no_weights() -> None:
    assert choice_weights([], "full") == []
    with pytest.raises(ValueError):
        best([])


@given(st.lists(scores, min_size=1, max_size=6), st.sampled_from(list(RANKINGS)))
def test_weights_are_a_distribution_over_the_highest_products(candidates: list[PassageScores], ranking: str) -> None:
    weights = choice_weights(candidates, ranking)
    top = max(product(c, ranking) for c in candidates)
    assert math.isclose(sum(weights), 1.0)
    assert all((weight > 0) == (product(c, ranking) == top) for weight, c in zip(weights, candidates, strict=True))


@given(st.lists(scores, min_size=1, max_size=6))
def test_the_choice_is_one_that_the_full_ranking_would_make(candidates: list[PassageScores]) -> None:
    assert choice_weights(candidates, FULL)[best(candidates)] > 0


@given(scores, st.floats(0.1, 5.0))
def test_exponents_of_0_and_1_are_the_rows_of_table_5(candidate: PassageScores, power: float) -> None:
    for ranking, factors in RANKINGS.items():
        corner = [float(name in factors) for name in RANKINGS[FULL]]
        assert product(candidate, exponents=corner) == product(candidate, ranking)
    assert product(candidate, "ans", [1.0, 1.0, power]) == candidate.ans**power


def test_equal_answers_add_up_and_the_best_of_them_is_chosen() -> None:
    candidates = [PassageScores(1.0, 0.5, 0.5), PassageScores(1.0, 0.4, 0.4), PassageScores(1.0, 0.4, 0.5)]
    assert best(candidates) == best(candidates, answers=["a", "b", "c"]) == 0
    assert best(candidates, answers=["a", "b", "b"]) == 2
    assert best(candidates, [1.0, 4.0, 4.0], ["a", "b", "b"]) == 0


@given(probabilities, probabilities, st.floats(-5.0, 5.0))
def test_a_shift_multiplies_the_odds_and_keeps_the_sum(s_rel: float, s_irr: float, shift: float) -> None:
    s_rel, s_irr = s_rel / 2, s_irr / 2
    yes, no = shift_relevance(s_rel, s_irr, shift)
    assert yes + no == pytest.approx(s_rel + s_irr)
    assert yes * s_irr == pytest.approx(math.exp(shift) * s_rel * no, abs=1e-9)
    assert shift_relevance(s_rel, s_irr, 0.0) == (s_rel, s_irr)

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reflectune.inference.ranking import (
    FULL,
    PAPER_TABLE_5,
    RANKINGS,
    Scores,
    best,
    choice_weights,
    order_agreement,
    product,
)

probabilities = st.floats(0.0, 1.0)
cosines = st.floats(-1.0, 1.0)
scores = st.builds(Scores, ret=cosines, rel=probabilities, ans=probabilities)


@pytest.mark.parametrize(
    ("ranking", "expected"),
    [
        ("random", 1.0),
        ("ans", 0.25),
        ("ret", 0.5),
        ("rel", 0.8),
        ("ret*ans", 0.125),
        ("rel*ans", 0.2),
        ("ret*rel", 0.4),
        ("full", 0.1),
    ],
)
def test_each_ranking_multiplies_the_scores_in_its_name(ranking: str, expected: float) -> None:
    assert product(Scores(ret=0.5, rel=0.8, ans=0.25), ranking) == pytest.approx(expected)


def test_there_are_the_eight_rows_of_table_5() -> None:
    assert list(RANKINGS) == list(PAPER_TABLE_5)
    assert len(RANKINGS) == 8
    assert RANKINGS[FULL] == ("ret", "rel", "ans")


def test_the_papers_overall_is_what_table_5_prints() -> None:
    assert PAPER_TABLE_5["random"]["overall"] == 0.327
    assert PAPER_TABLE_5["ret*rel"]["unseen_question"] == 0.405
    assert PAPER_TABLE_5[FULL] == {"unseen_question": 0.406, "unseen_entity": 0.398, "overall": 0.402}


def test_a_negative_similarity_does_not_turn_a_product_round() -> None:
    strong, weak = Scores(ret=-0.5, rel=0.9, ans=0.9), Scores(ret=-0.5, rel=0.1, ans=0.1)
    assert product(strong) == product(weak) == 0.0
    assert best([weak, strong]) == 1  # the tie at 0 is broken by S_rel, not by the sign


def test_the_three_levels_disagree_and_each_ranking_follows_its_own() -> None:
    by_ret, by_rel, by_ans = Scores(0.9, 0.2, 0.2), Scores(0.2, 0.9, 0.2), Scores(0.2, 0.2, 0.9)
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
def test_weights_are_a_distribution_over_the_highest_products(candidates: list[Scores], ranking: str) -> None:
    weights = choice_weights(candidates, ranking)
    top = max(product(c, ranking) for c in candidates)
    assert math.isclose(sum(weights), 1.0)
    assert all((weight > 0) == (product(c, ranking) == top) for weight, c in zip(weights, candidates, strict=True))


@given(st.lists(scores, min_size=1, max_size=6))
def test_the_choice_is_one_that_the_full_ranking_would_make(candidates: list[Scores]) -> None:
    assert choice_weights(candidates, FULL)[best(candidates)] > 0


def test_order_agreement_counts_pairs() -> None:
    reported = {"a": 0.1, "b": 0.2, "c": 0.2, "d": 0.3}  # five ordered pairs: b and c tie
    assert order_agreement({"a": 1, "b": 2, "c": 5, "d": 9}, reported) == 1.0
    assert order_agreement({"a": 9, "b": 5, "c": 2, "d": 1}, reported) == 0.0
    assert order_agreement({"a": 1, "b": 1, "c": 2, "d": 3}, reported) == pytest.approx(4.5 / 5)


def test_the_paper_agrees_with_itself() -> None:
    for column in ("overall", "unseen_question", "unseen_entity"):
        reported = {name: row[column] for name, row in PAPER_TABLE_5.items()}
        assert order_agreement(reported, reported) == 1.0

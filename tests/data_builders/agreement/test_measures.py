import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reflectune.data_builders.agreement.measures import agreement, correctness, table
from reflectune.data_builders.annotators.protocol import Label

R: Label = "relevant"
I: Label = "irrelevant"  # noqa: E741
U: Label = "unclear"

labels = st.lists(st.sampled_from([R, I, U]), max_size=30)


def test_kappa_is_cohens() -> None:
    """The classic table: 20 both yes, 15 both no, 5 and 10 apart: 0.7 observed, 0.5 by chance, kappa 0.4."""
    first = [R] * 20 + [R] * 5 + [I] * 10 + [I] * 15
    second = [R] * 20 + [I] * 5 + [R] * 10 + [I] * 15

    comparison = agreement(first, second)

    assert (comparison.cases, comparison.share, comparison.first_only, comparison.second_only) == (50, 0.7, 5, 10)
    assert comparison.kappa == pytest.approx(0.4)


def test_an_unclear_label_is_not_compared() -> None:
    comparison = agreement([R, U, I], [R, R, U])

    assert (comparison.cases, comparison.share, comparison.kappa) == (1, 1.0, 1.0)


@given(given_labels=labels)
def test_everybody_agrees_with_himself(given_labels: list[Label]) -> None:
    comparison = agreement(given_labels, given_labels)

    known = [one for one in given_labels if one != U]
    assert comparison.cases == len(known)
    assert (comparison.share, comparison.kappa) == ((1.0, 1.0) if known else (0.0, 0.0))


@given(pairs=st.lists(st.tuples(st.sampled_from([R, I, U]), st.sampled_from([R, I, U])), max_size=30))
def test_agreement_is_symmetric(pairs: list[tuple[Label, Label]]) -> None:
    one = agreement([a for a, _ in pairs], [b for _, b in pairs])
    other = agreement([b for _, b in pairs], [a for a, _ in pairs])

    assert (one.cases, one.share, one.first_only) == (other.cases, other.share, other.second_only)
    assert math.isclose(one.kappa, other.kappa)


def test_precision_recall_and_the_third_class() -> None:
    scores = correctness([R, R, R, I, U, I, R], [R, R, I, R, R, I, U])

    assert (scores.cases, scores.relevant, scores.unclear) == (6, 3, 1)
    assert (scores.precision, scores.recall) == (pytest.approx(2 / 3), pytest.approx(2 / 4))
    assert scores.f1 == pytest.approx(2 * (2 / 3) * (1 / 2) / (2 / 3 + 1 / 2))


def test_without_anything_relevant_the_scores_are_zero() -> None:
    scores = correctness([I, U], [I, I])

    assert (scores.precision, scores.recall, scores.f1) == (0.0, 0.0, 0.0)


def test_the_tables_have_a_line_for_each_pair_and_each_annotator() -> None:
    page = table({"string": [R, I], "gold": [R, I], "llm": [R, R]}, [R, I])

    assert "| string, gold | 2 | 100.0% | 1.000 | 0 | 0 |" in page
    assert "| gold, llm | 2 | 50.0% | 0.000 | 0 | 1 |" in page
    assert "| llm | 2 | 2 | 0 | 50.0% | 100.0% | 66.7% |" in page
    assert "precision" not in table({"string": [R], "gold": [R]}, None)

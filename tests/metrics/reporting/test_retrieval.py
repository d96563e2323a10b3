import pytest
from hypothesis import given
from hypothesis import strategies as st

from reflectune.core.types import Evidence, Passage
from reflectune.metrics.reporting import retrieval


def passage(entry_id: str, section: int, index: int = 0) -> Passage:
    return Passage(entry_id, section, index, title="", lead="", heading="", text="")


def test_an_entry_that_comes_again_takes_no_further_place() -> None:
    assert retrieval.article_recall_at_k(["a", "a", "b"], {"b"}, 2) == 1.0
    assert retrieval.article_recall_at_k(["a", "c", "b"], {"b"}, 2) == 0.0


def test_a_passage_is_right_if_its_section_is() -> None:
    ranked = [passage("a", 0), passage("a", 1, 3), passage("b", 1)]
    assert retrieval.passage_recall_at_k(ranked, [Evidence("a", 1)], 1) == 0.0
    assert retrieval.passage_recall_at_k(ranked, [Evidence("a", 1)], 2) == 1.0
    assert retrieval.passage_recall_at_k(ranked, [Evidence("c", 1)], 3) == 0.0


@given(st.permutations("abcdef"), st.sampled_from("abcdef"))
def test_recall_rises_with_k_and_steps_where_the_rank_is(ranked: list[str], gold: str) -> None:
    steps = [retrieval.article_recall_at_k(ranked, {gold}, k) for k in range(1, 7)]
    assert steps == sorted(steps)
    assert 1 / (steps.index(1.0) + 1) == retrieval.reciprocal_rank(ranked, {gold})
    assert retrieval.article_recall_at_k([], {gold}, 1) == retrieval.reciprocal_rank([], {gold}) == 0.0


def test_pseudo_relevance_is_the_answers_text_in_any_case() -> None:
    texts = ["Nothing known.", "It stands in PARIS."]
    assert retrieval.prr_at_k(texts, ["paris "], 1) == 0.0
    assert retrieval.prr_at_k(texts, ["x", "paris "], 2) == 1.0
    assert retrieval.prr_at_k(texts, ["no"], 1) == 1.0  # in "known"
    with pytest.raises(ValueError, match="nothing is undefined"):
        retrieval.prr_at_k([], ["no"], 1)


def test_what_is_undefined_is_refused() -> None:
    with pytest.raises(ValueError, match="gold"):
        retrieval.article_recall_at_k(["a"], set(), 1)
    with pytest.raises(ValueError, match="k of at least 1"):
        retrieval.passage_recall_at_k([], [Evidence("a", 0)], 0)


def test_overlap_is_the_share_of_the_exact_ones_that_are_found() -> None:
    assert retrieval.overlap_at_k("abcd", "adbc", 4) == 1.0
    assert retrieval.overlap_at_k("abcd", "adbc", 2) == 0.5
    assert retrieval.overlap_at_k("ab", "abcd", 4) == 0.5
    assert retrieval.overlap_at_k("abcd", "ab", 4) == 1.0  # an exact search that has no more
    assert retrieval.overlap_at_k("", "a", 1) == 0.0
    with pytest.raises(ValueError, match="at least one gold item"):
        retrieval.overlap_at_k("a", "", 1)

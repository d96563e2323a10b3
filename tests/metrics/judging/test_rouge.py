import pytest

from reflectune.metrics.judging import rouge


def test_the_f_measure_of_the_longest_common_subsequence() -> None:
    pytest.importorskip("rouge_score")
    # "the cat" of 3 and 4 words: precision 2/4, recall 2/3
    assert rouge.rouge_l("the black cat sleeps", ["the cat sat"]) == pytest.approx(
        2 * (1 / 2 * 2 / 3) / (1 / 2 + 2 / 3)
    )
    assert rouge.rouge_l("same words", ["other", "Same, words!"]) == 1.0
    assert rouge.rouge_l("", ["a"]) == 0.0


def test_words_are_compared_not_stems() -> None:
    pytest.importorskip("rouge_score")
    assert rouge.rouge_l("towers", ["tower"]) == 0.0


def test_no_reference_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one reference"):
        rouge.rouge_l("a", [])

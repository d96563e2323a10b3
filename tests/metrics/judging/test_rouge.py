import pytest

from reflectune.metrics.judging import rouge


def test_words_not_stems_are_compared_with_each_reference() -> None:
    pytest.importorskip("rouge_score")
    # "the cat" of 3 and 4 words: precision 2/4, recall 2/3
    assert rouge.rouge_l("the black cat sleeps", ["other", "the cat sat"]) == pytest.approx(4 / 7)
    assert rouge.rouge_l("towers", ["tower"]) == 0.0
    with pytest.raises(ValueError, match="at least one reference"):
        rouge.rouge_l("a", [])

from __future__ import annotations

from reflectune.metrics.official.vqa import CONTRACTIONS, DIGITS


def test_a_contraction_lacks_exactly_one_apostrophe() -> None:
    odd = {"somebody'd": "somebodyd"}
    for slip, word in CONTRACTIONS.items():
        assert slip.replace("'", "") == word.replace("'", "")
        assert slip.count("'") == word.count("'") - 1 or odd.get(slip) == word


def test_words_that_are_words_without_their_apostrophe_are_left_alone() -> None:
    assert not {"lets", "shed", "shell", "well", "were", "ill", "id", "wed"} & set(CONTRACTIONS)


def test_number_words() -> None:
    assert [DIGITS[word] for word in ("none", "zero", "one", "seven", "ten")] == ["0", "0", "1", "7", "10"]
    assert "eleven" not in DIGITS

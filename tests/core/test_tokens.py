"""Tokens of texts: a dash is a minus sign or none, words in any form are one word."""

from __future__ import annotations

import pytest

from reflectune.core.tokens import tokenize


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("at \u20135 \u00b0C", ["-5"]),
        ("(\u22125) and -5", ["-5", "-5"]),
        ("5\u201310, 5\u00b0\u201310\u00b0, 5 \u201310, $5\u2013$10", ["5", "10"] * 4),
        ("\u22125\u2013\u22123", ["-5", "-3"]),
        ("A-5, 1990--1995", ["5", "1990", "1995"]),
    ],
)
def test_a_dash_is_a_minus_sign_before_a_number_and_not_in_a_range(text: str, numbers: list[str]) -> None:
    assert [token for token in tokenize(text) if not token.isalpha()] == numbers


@pytest.mark.parametrize(
    "words",
    [
        ["Z\u00fcrich", "Zu\u0308rich", "ZURICH", "\uff3aurich", "Zu\u00adrich"],
        ["\u0141\u00f3d\u017a", "Lodz"],
        ["Hawai\u02bbi", "Hawai'i", "hawai\u2019i"],
        ["\ufb01nch", "finch"],
        ["\u30ac\u30b9", "\uff76\uff9e\uff7d"],
        ["\ud55c\uad6d", "\u1112\u1161\u11ab\u1100\u116e\u11a8"],
    ],
)
def test_a_word_is_one_token_in_any_form(words: list[str]) -> None:
    assert len(set(map(tokenize, words))) == 1


@pytest.mark.parametrize(
    "word",
    [
        "\u6771\u4eac",
        "\u0e44\u0e17\u0e22",
        "\u0ea5\u0eb2\u0ea7",
        "\u1019\u103c\u1014\u103a",
        "\u1781\u17d2\u1798\u17c2\u179a",
    ],
)
def test_each_letter_of_a_script_without_spaces_is_a_token(word: str) -> None:
    assert tokenize(word) == tuple(word)

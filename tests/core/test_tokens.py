"""Tokens of texts: numbers in any notation are one number, words in any form are one word."""

from __future__ import annotations

import pytest

from reflectune.core.tokens import grouped_numbers, plain_numbers, tokenize


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("5\u00bd kg", "5.5 kg"),
        ("\u22125 \u00be, 2\u20443 and \u00b3\u2044\u2084", "-5.75, 0.666667 and 0.75"),
        ("5-1/2 in, 1/2 in, 24/7, 9/11, 1/2/1999, in 1872 \u00bd", "5.5 in, 0.5 in, 24/7, 9/11, 1/2/1999, in 1872 0.5"),
        ("10\u2076 m, 3.2\u00d710\u207b\u00b2, 2 x 10^3, 1.5e6", "1000000 m, 0.032, 2000, 1500000"),
        ("1872\u00b3 in 1872.\u00b3 in 1872[3] Berlin\u00b2", "1872 in 1872. in 1872 Berlin"),
        ("45 km\u00b2, 45 metres\u00b2, CO\u2082, 45 \u33a1", "45 km\u00b2, 45 metres\u00b2, CO\u00b2, 45 m\u00b2"),
        ("50 000, 50\u00a0000, 50\u2009000, 50\u202f000, 50\u2019000", ", ".join(["50000"] * 5)),
        ("in 2010 100\u00a0200 of 100 000 3 times", "in 2010 100200 of 100000 3 times"),
        ("1,234,567.5; 12,34,567; 1.234.567; 1.234,5; 50.000", "1234567.5; 1234567; 1234567; 1234.5; 50.000"),
        ("1990 100 200, on May 12 300 came, 1872, 300", "1990 100 200, on May 12 300 came, 1872, 300"),
        ("\uff15\uff10\uff0c\uff10\uff10\uff10 \u0665\u0660\u066c\u0660\u0660\u0660", "50000 50000"),
        ("3,5 kg, .5 kg, minus 5, 10 minus 5", "3.5 kg, 0.5 kg, -5, 10 minus 5"),
    ],
)
def test_a_number_reads_the_same_in_any_notation(text: str, plain: str) -> None:
    assert plain_numbers(text) == plain
    assert tokenize(text) == tokenize(plain)


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


def test_only_digits_in_groups_are_grouped() -> None:
    assert grouped_numbers("in 1872, 1\u00a0900 of 2,000") == {"1900", "2000"}


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

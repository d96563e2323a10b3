"""Numbers in any notation are one number."""

from __future__ import annotations

import pytest

from reflectune.core.numerals import grouped_numbers, plain_numbers
from reflectune.core.tokens import tokenize


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


def test_only_digits_in_groups_are_grouped() -> None:
    assert grouped_numbers("in 1872, 1\u00a0900 of 2,000") == {"1900", "2000"}

from dataclasses import dataclass

import pytest

from reflectune.core.rows import from_row, schema_of


@dataclass(frozen=True)
class Inner:
    text: str
    score: float | None = None


@dataclass(frozen=True)
class Outer:
    id: str
    inner: tuple[Inner, ...] = ()
    count: int = 0


@dataclass(frozen=True)
class Odd:
    words: dict[str, str]


def test_a_type_that_cannot_be_a_column_is_an_error():
    with pytest.raises(TypeError, match=r"can.t be a column"):
        schema_of(Odd)


def test_unknown_keys_are_ignored_and_fields_with_a_default_may_be_missing():
    row = {"id": "a", "colour": "red", "inner": [{"text": "x", "rank": 2}]}
    assert from_row(Outer, row) == Outer("a", inner=(Inner("x"),))

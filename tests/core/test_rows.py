from dataclasses import dataclass
from typing import Literal

import pyarrow as pa
import pytest

from reflectune.core.rows import from_row, schema_of, to_row


@dataclass(frozen=True)
class Inner:
    text: str
    score: float | None = None


@dataclass(frozen=True)
class Outer:
    id: str
    style: Literal["short", "long"] = "short"
    inner: tuple[Inner, ...] = ()
    count: int = 0
    kept: bool = True


@dataclass(frozen=True)
class Odd:
    words: dict[str, str]


def test_columns_follow_the_fields():
    inner = pa.struct([("text", pa.string()), ("score", pa.float64())])
    assert schema_of(Outer) == pa.schema(
        [
            ("id", pa.string()),
            ("style", pa.string()),
            ("inner", pa.list_(inner)),
            ("count", pa.int32()),
            ("kept", pa.bool_()),
        ]
    )


def test_a_type_that_cannot_be_a_column_is_an_error():
    with pytest.raises(TypeError, match=r"can.t be a column"):
        schema_of(Odd)


def test_a_value_comes_back_through_parquet():
    value = Outer("a", "long", (Inner("x", 0.5), Inner("y")), 3, False)
    table = pa.Table.from_pylist([to_row(value)], schema=schema_of(Outer))
    assert [from_row(Outer, row) for row in table.to_pylist()] == [value]


def test_unknown_keys_are_ignored_and_fields_with_a_default_may_be_missing():
    assert from_row(Outer, {"id": "a", "colour": "red", "inner": [{"text": "x", "rank": 2}]}) == Outer(
        "a", inner=(Inner("x"),)
    )


def test_every_wrong_field_is_named():
    with pytest.raises(ValueError, match=r"`id`: field required; `style`: .*; `inner\.0\.text`: "):
        from_row(Outer, {"style": "wide", "inner": [{"text": None}]})

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reflectune.core.rejected import BadRow, MissingImage, stop
from reflectune.data_builders.readers.rows import (
    SourceLine,
    SourceRow,
    flag,
    integer,
    mapping,
    number,
    one_of,
    placed,
    rows,
    text,
    texts,
)


def row(**values: object) -> SourceRow:
    return SourceRow({"data_id": "q7", **values}, "set.jsonl", 12)


def test_an_error_is_one_line_that_names_file_line_id_field_and_fix() -> None:
    error = BadRow("set.jsonl", 12, "q7", "question", "is\nempty", "give it a value")
    assert str(error) == "set.jsonl:12: id q7: field `question`: is empty; give it a value"
    assert str(BadRow("set.jsonl", 12, "", "", "is cut off", "download it")) == "set.jsonl:12: is cut off; download it"


def test_an_error_of_either_kind_survives_the_way_between_processes() -> None:
    for kind in (BadRow, MissingImage):
        error = kind("a", 3, "i", "f", "p", "x")
        back = pickle.loads(pickle.dumps(error))
        assert (type(back), str(back), back.line) == (kind, str(error), 3)
    sent = pickle.loads(pickle.dumps(row(a=1)))
    assert (sent, sent.file, sent.line, sent.id) == (row(a=1), "set.jsonl", 12, "q7")


def test_an_object_comes_with_the_place_of_its_row_and_the_field_that_names_it() -> None:
    given = [
        (1, SourceRow({"id": "a"}, "f", 1)),
        (2, SourceRow({"question_id": "b", "id": 7}, "f", 2)),
        (3, SourceRow({"key": "c", "id": 7}, "f", 3, "key")),
        (4, SourceRow({"title": "d"}, "f", 4)),
    ]
    named = [SourceLine("f", 1, "id"), SourceLine("f", 2, "question_id"), SourceLine("f", 3, "key"), SourceLine("f", 4)]
    assert [line for _, line in placed(given, dict, stop)] == named
    assert str(named[1].duplicate("b", "a data set")).startswith("f:2: id b: field `question_id`: is a duplicate; ids")


GOOD = [
    (text, {"f": "  a b "}, {}, "a b"),
    (text, {}, {"default": "d"}, "d"),
    (text, {"f": None}, {"default": "d"}, "d"),
    (text, {"f": " "}, {"empty": True}, ""),
    (text, {"f": " "}, {"default": "d"}, "d"),
    (number, {"f": "3.5"}, {}, 3.5),
    (number, {"f": 3}, {}, 3.0),
    (number, {"f": ""}, {"default": 1.0}, 1.0),
    (integer, {"f": "7"}, {}, 7),
    (integer, {"f": 7.0}, {}, 7),
    (flag, {"f": "True"}, {}, True),
    (flag, {"f": 0}, {}, False),
    (texts, {"f": [" a", "", "b"]}, {}, ("a", "b")),
    (texts, {"f": "a"}, {}, ("a",)),
    (texts, {}, {"default": ()}, ()),
    (texts, {"f": []}, {"empty": True}, ()),
    (one_of, {"f": "x"}, {"choices": ("x", "y")}, "x"),
    (one_of, {}, {"choices": ("x", "y"), "default": ""}, ""),
    (mapping, {"f": {"a": 1}}, {}, {"id": "q7", "a": 1}),
    (rows, {"f": [{"a": 1}]}, {}, [{"id": "q7", "a": 1}]),
]

BAD = [
    (text, {}, {}, "is missing"),
    (text, {"f": None}, {}, "is null"),
    (text, {"f": ["a"]}, {}, "should be text"),
    (text, {"f": "\t"}, {}, "is empty"),
    (number, {"f": True}, {}, "should be a number"),
    (number, {"f": "much"}, {}, "should be a number"),
    (number, {"f": float("nan")}, {}, "finite"),
    (number, {"f": "inf"}, {}, "finite"),
    (integer, {"f": 7.5}, {}, "whole number"),
    (flag, {"f": "perhaps"}, {}, "true or false"),
    (texts, {"f": [1]}, {}, "list of texts"),
    (texts, {"f": {"a": 1}}, {}, "list of texts"),
    (texts, {"f": [" "]}, {}, "is empty"),
    (one_of, {"f": "z"}, {"choices": ("x", "y")}, "one of x, y"),
    (mapping, {"f": []}, {}, "should be an object"),
    (rows, {"f": [1]}, {}, "list of objects"),
    (rows, {}, {}, "is missing"),
]


@pytest.mark.parametrize(("read", "values", "options", "expected"), GOOD)
def test_fields_of_the_right_type_are_read(read, values, options, expected) -> None:
    assert read(row(**values), "f", **options) == expected


@pytest.mark.parametrize(("read", "values", "options", "problem"), BAD)
def test_fields_of_the_wrong_type_are_named(read, values, options, problem) -> None:
    with pytest.raises(BadRow, match=problem) as caught:
        read(row(**values), "f", **options)
    assert str(caught.value).startswith("set.jsonl:12: id q7: field `f`: ")
    assert "\n" not in str(caught.value)


@given(st.dictionaries(st.text(), st.none() | st.integers() | st.text() | st.lists(st.text()) | st.floats()))
def test_a_field_is_read_or_refused_whatever_it_is(values: dict[str, object]) -> None:
    row, errors = SourceRow(values, "f.jsonl", 1), []
    for name in [*values, "absent"]:
        for read in (text, number, integer, flag, texts, mapping, rows):
            try:
                read(row, name)
            except BadRow as error:
                errors.append(str(error))
    assert len(errors) >= 7
    assert all("\n" not in error and error.startswith("f.jsonl:1: ") for error in errors)

"""The rules of a valid question."""

import math
from dataclasses import replace
from typing import Any

import pytest

from reflectune.core.types import Question
from reflectune.formats.questions import ANSWER_TYPES, malformed, unusable

GOOD = Question("q1", "a.jpg", "When was it built?", ("1874",), split="train")


@pytest.mark.parametrize("kind", ANSWER_TYPES)
def test_every_kind_of_answer_and_a_question_without_any_are_fine(kind: Any) -> None:
    assert unusable(replace(GOOD, answer_type=kind)) is None
    assert unusable(replace(GOOD, answer_type=kind, answers=(), image="")) is None


@pytest.mark.parametrize(
    ("change", "field", "found"),
    [
        ({"id": ""}, "id", "is empty"),
        ({"id": None}, "id", "is empty"),
        ({"id": True}, "id", "is bool"),
        ({"text": None}, "text", "is empty"),
        ({"image": None}, "image", "is empty"),
        ({"more_images": ("b.jpg", "")}, "more_images", "holds a value that is not a path"),
        ({"image": "", "more_images": ("b.jpg",)}, "image", "is empty, and `more_images` is not"),
        ({"answer_type": "essay"}, "answer_type", "is 'essay'"),
        ({"answers": (None,)}, "answers", "holds a value that is not a text"),
        ({"range": (math.nan, 2.0)}, "range", "is nan to 2.0"),
        ({"range": (None, 2.0)}, "range", "is None to 2.0"),
    ],
)
def test_the_problem_is_named_with_its_field(change: dict[str, Any], field: str, found: str) -> None:
    for problem in (malformed(replace(GOOD, **change)), unusable(replace(GOOD, **change))):
        assert problem is not None
        assert problem[:2] == (field, found)


def test_a_range_that_descends_is_fine_since_infoseeks_files_have_some() -> None:
    assert unusable(replace(GOOD, answer_type="numerical", range=(-387.0, -473.0))) is None


@pytest.mark.parametrize(
    ("change", "field", "found"),
    [
        ({"text": " "}, "text", "is empty"),
        ({"split": ""}, "split", "is ''"),
        ({"split": "a/b"}, "split", "is 'a/b'"),
        ({"split": "x" * 300}, "split", "has 300 letters"),
    ],
)
def test_a_readable_question_that_should_not_be_written_is_named(change, field, found) -> None:
    problem = unusable(replace(GOOD, **change))
    assert problem is not None
    assert problem[:2] == (field, found)
    assert malformed(replace(GOOD, **change)) is None

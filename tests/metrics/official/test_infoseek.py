from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reflectune.core.errors import UserError
from reflectune.core.types import Question
from reflectune.metrics.official import infoseek
from tests.metrics.official.report import official_report


def question(key: str, split: str = "val_unseen_entity", answers: tuple[str, ...] = ("oak",), **more: Any) -> Question:
    return Question(id=key, image="a.png", text="?", answers=answers, split=split, **more)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("5 to 3", 5.0),
        ("1994-95", 1994.0),
        ("COVID-19", -19.0),
        ("²-5", 5.0),
        ("-.5.2", -0.5),
    ],
)
def test_numbers_are_parsed_as_by_the_official_code(text: str, wanted: infoseek.Number) -> None:
    assert infoseek.parse_numerical(text) == wanted


@given(st.text(alphabet="0123456789.,-+eE²٣ a"))
def test_no_text_is_beyond_reading(text: str) -> None:
    infoseek.parse_numerical(text)


def test_a_single_number_stands_for_a_tenth_to_either_side() -> None:
    assert [infoseek.numerical_range(said, 20.0) for said in (17.9, 18.0, 22.0, 22.1)] == [0, 1, 1, 0]
    assert infoseek.numerical_range((18.0, 22.0), 20.0) == infoseek.numerical_range((18.0, 22.0), (18.0, 22.0)) == 1


PLACES = "Trinidad and Tobago && Washington, D.C."
LISTS = ("x && y", "red && blue && green")


@pytest.mark.parametrize(
    ("answer_type", "answers", "right", "wrong"),
    [
        ("time", ("1887", "31 March 1887"), ("1887.", "31 march 1887"), ("1888", "March 1887")),
        ("numerical", ("10",), ("10.4 m",), ("12", "ten")),
        ("multi_answer", LISTS, ("blue, red", "y and x", "x && y", "green && red && oak"), ("red",)),
        ("multi_answer", (PLACES,), (PLACES, "Washington, D.C.&&Trinidad and Tobago"), ()),
        ("multi_answer", ("Ab and Cd && Rome",), ("Ab and Cd",), ("Rome and Oslo", "Ab and Oslo")),
    ],
    ids=[
        "exactly, whatever the official docstring says",
        "by its range",
        "by overlap",
        "`and` or a comma",
        "half a name",
    ],
)
def test_each_type_of_answer_has_its_rule(answer_type: str, answers: Any, right: Any, wrong: Any) -> None:
    asked = question("q", answers=answers, answer_type=answer_type, range=(9.0, 11.0))
    assert [infoseek.score_one(said, asked) for said in (*right, *wrong)] == [1] * len(right) + [0] * len(wrong)


@pytest.mark.parametrize("unscorable", [question("q7", answers=()), question("q7", answer_type="numerical")])
def test_a_question_that_cannot_be_scored_is_named(unscorable: Question) -> None:
    with pytest.raises(UserError, match="q7"):
        infoseek.score_one("oak", unscorable)


def rows(questions: list[Question]) -> tuple[list[dict[str, Any]], list[dict[str, str]]]:
    references = [{"data_id": q.id, "answer_eval": list(q.answers), "data_split": q.split} for q in questions]
    return references, [{"data_id": q.id, "question_type": q.answer_type.title()} for q in questions]


def test_the_official_report_rounds_before_it_averages_and_counts_a_repeated_id_twice() -> None:
    questions = [question("a", "unseen_question"), question("b")]
    said = [("a", "oak"), ("a", "elm"), ("a", "elm"), ("b", "oak"), ("b", "oak"), ("b", "elm"), ("zz", "oak")]
    report = official_report([{"data_id": k, "prediction": v} for k, v in said], *rows(questions))
    assert report["unseen_question_score"] == {"score": 33.33, "score_time": 0, "score_num": 0, "score_string": 33.33}
    assert report["unseen_entity_score"]["score"] == 66.67
    assert report["final_score"] == round(2 / (1 / 33.33 + 1 / 66.67), 2)


@given(st.lists(st.floats(-1e3, 1e3), min_size=4, max_size=4))
def test_range_overlap_is_symmetric_and_a_share(bounds: list[float]) -> None:
    x, y = bounds[:2], bounds[2:]
    assert infoseek.range_iou(x, y) == infoseek.range_iou(y, x)
    assert 0.0 <= infoseek.range_iou(x, y) <= 1.0

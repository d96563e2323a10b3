import pytest
from hypothesis import given
from hypothesis import strategies as st

from reflectune.core.errors import UserError
from reflectune.core.types import Question
from reflectune.metrics.judging.cover import cover_match, cover_one, spaced_tokens


@pytest.mark.parametrize(
    ("prediction", "answer", "strict", "official"),
    [
        ("It is in Paris, France.", "Paris", 1, 1),
        ("I do not know", "no", 0, 1),
        ("Romeo and Juliet", "Rome", 0, 1),
        ("The answer: São  Paulo!", "são paulo", 1, 0),
        ("the tower of London", "The Tower of the London", 1, 0),
        ("1,204 metres", "204", 0, 1),
        ("1 204 metres", "1,204", 1, 0),
        ("Zu\u0308rich", "Zurich", 1, 0),
        ("Paris,France", "France", 1, 1),
        ("straße", "STRASSE", 1, 0),
        ("ﬁnch", "finch", 1, 0),
        ("\u9996\u90fd\u306f\u6771\u4eac\u3067\u3042\u308b", "\u6771\u4eac", 1, 1),
        ("\u9996\u90fd\u306f\u6771\u4eac\u3067\u3042\u308b", "\u4eac\u6771", 0, 0),
        ("\u0e1b\u0e23\u0e30\u0e40\u0e17\u0e28\u0e44\u0e17\u0e22", "\u0e44\u0e17\u0e22", 1, 1),
        ("\u092f\u0939 \u0926\u093e\u0932", "\u0926\u093f\u0932", 0, 0),  # Hindi: dal, dil
        ("\u092f\u0939 \u0926\u093f\u0932", "\u0926\u093f\u0932", 1, 1),
        ("\uc11c\uc6b8\uc740", "\uc11c\uc6b8", 0, 1),
        ("anything", "", 0, 1),
        ("anything", "the", 0, 0),
        ("", "x", 0, 0),
    ],
)
def test_strict_compares_whole_tokens_and_official_any_substring(
    prediction: str, answer: str, strict: int, official: int
) -> None:
    assert cover_match(prediction, [answer], "strict") == strict
    assert cover_match(prediction, [answer], "official") == official
    assert cover_match(prediction, ["zzz", answer], "strict") == strict


TEXTS = st.text(st.characters(exclude_categories=["Cs", "Nd", "No"]))  # numbers in a row are one number


@given(TEXTS, TEXTS, TEXTS)
def test_an_answer_is_covered_wherever_it_stands(before: str, answer: str, after: str) -> None:
    covered = cover_match(f"{before} {answer} {after}", [answer])
    assert covered == int(spaced_tokens(answer) != " ")


def question(**fields: object) -> Question:
    return Question("q", "", "?", **fields)  # type: ignore[arg-type]


def test_more_than_half_of_a_list_is_enough() -> None:
    list_question = question(answers=("red&&blue&&navy",), answer_type="multi_answer")
    assert cover_one("blue, and a dark red", list_question) == 1.0
    assert cover_one("navy", list_question) == 0.0
    assert cover_one("bluered", list_question) == 0.0
    assert cover_one("bluered", list_question, "official") == 1.0
    assert cover_one("one", question(answers=("one&&two",))) == 0.0


def test_any_number_will_do_officially_and_the_first_strictly() -> None:
    number_question = question(range=(9.0, 11.0), answer_type="numerical")
    assert cover_one("built in 1900, 10 m high", number_question, "official") == 1.0
    assert cover_one("built in 1900, 10 m high", number_question, "strict") == 0.0
    assert cover_one("10 m", number_question, "strict") == 1.0
    assert cover_one("9\u00bd m", number_question, "strict") == 1.0
    assert cover_one("10 000 m", number_question, "strict") == 0.0
    assert cover_one("10 000 m", number_question, "official") == 1.0


def test_what_has_no_truth_is_refused() -> None:
    with pytest.raises(UserError, match="no range"):
        cover_one("1", question(answer_type="numerical"))
    with pytest.raises(UserError, match="no answers"):
        cover_one("1", question())

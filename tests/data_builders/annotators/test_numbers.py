"""Numbers of a text that answer a question."""

import pytest

from reflectune.core.types import Passage, Question
from reflectune.data_builders.annotators.numbers import Unit, expected_unit, number_in_range
from reflectune.data_builders.annotators.string import stated_answer


@pytest.mark.parametrize(
    ("text", "answer", "unit"),
    [
        ("What is the length of this bird in centimetre?", "120-170", Unit("centimetre")),
        ("What is its area (in square kilometre)?", "12", Unit("square kilometre")),
        ("What is its mass (kg)?", "12", Unit("kilogram")),
        ("What is the top speed in kilometre per hour?", "12", Unit("kilometre per hour")),
        ("How many metres tall is it?", "12", Unit("metre")),
        ("How tall is it in feet?", "3 metres", Unit("metre", "metres")),
        ("How large is it?", "45 km\N{SUPERSCRIPT TWO}", Unit("square kilometre", "square kilometre")),
        ("How large is it?", "1.2 million square kilometres", Unit("square kilometre", "square kilometres")),
        ("How many live there?", "20–30 people", Unit("people", "people")),
        ("How many people live in M?", "12", Unit()),
        ("How many keys does it have in total?", "88", Unit()),
        ("How tall is it (about)?", "12", Unit()),
    ],
)
def test_the_unit_is_the_references_or_the_one_that_the_question_names(text: str, answer: str, unit: Unit) -> None:
    assert expected_unit(Question("q", "", text, (answer,), answer_type="numerical")) == unit


def stated(question: Question, text: str) -> str:
    return stated_answer(question, Passage("e", 0, 0, "", "", "", text))


def test_a_magnitude_is_the_unit_of_a_range_that_counts_in_it() -> None:
    visitors = Question("q", "", "How many?", ("61 thousand",), range=(54.9, 67.1), answer_type="numerical")
    assert expected_unit(visitors) == Unit("thousand", "thousand")
    assert stated(visitors, "It has 60 thousand visitors.") == "60 thousand"
    assert stated(visitors, "It is 60 inches tall, and 60 thousandths wide.") == ""


def test_a_unit_in_a_script_without_spaces_is_found_by_its_first_letter() -> None:
    metres = "\u7c73"
    tall = Question("q", "", "?", (f"45{metres}",), range=(40, 50), answer_type="numerical")
    assert expected_unit(tall) == Unit(metres)
    assert stated(tall, f"\u9ad8\u3055\u306f46{metres}\u3067\u3059") == "46"
    assert stated(tall, "\u9ad8\u3055\u306f46\u5e74\u3067\u3059") == ""


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("It is 45 m tall.", "45"),
        ("It is 45\N{NO-BREAK SPACE}metres tall.", "45"),
        ("A 45-metre tower.", "45"),
        ("It is 45.5–60 m tall.", "45.5"),
        ("It is 45 to 60 meters tall.", "45"),
        ("It is 45 years old.", ""),
        ("It covers 45 m\N{SUPERSCRIPT TWO}.", ""),
        ("It covers 45 square metres.", ""),
        ("It is 45 cm wide.", ""),
        ("Bus 45 goes there, 500 m away.", ""),
        ("It was built in 45.", ""),
    ],
)
def test_a_number_needs_the_unit_in_any_spelling(text: str, found: str) -> None:
    assert number_in_range(text, (40, 50), Unit("metre")) == found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("It has 1,872 rooms.", "1872"),
        ("It has 1.872 thousand rooms.", "1872"),
        ("It was founded in 1872.", ""),
        ("It was founded on 4 May 1872.", ""),
        ("It was founded in 1872, and has 1,900 rooms.", "1900"),
    ],
)
def test_without_a_unit_a_year_does_not_count(text: str, found: str) -> None:
    assert number_in_range(text, (1800, 2000), Unit()) == found


def test_without_a_unit_a_day_does_not_count() -> None:
    assert number_in_range("It fell on 4 May, and on May 5.", (3, 6), Unit()) == ""
    assert number_in_range("It fell on 4 May and had 5 legs.", (3, 6), Unit()) == "5"


def test_a_bare_reference_is_found_only_with_the_unit_that_the_question_names() -> None:
    long = Question("q", "", "How long is it in metre?", ("1.0",), range=(0.9, 1.1), answer_type="numerical")
    assert stated(long, "It is 1 m long.") == "1"
    assert stated(long, "It is one of 1 kind, seen on 1 May 1999.") == ""

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reflectune.core.tokens import tokenize
from reflectune.core.types import AnswerType, Passage, Question
from reflectune.data_builders.annotators.string import annotate_by_string, canonical_answer, states_a_part
from reflectune.metrics.official import infoseek

SENTENCE = "It was founded in 1872."


def passage(text: str) -> Passage:
    return Passage("e1", 0, 0, "Gold Tower", "A gold tower of 1872.", "History", text)


def question(*answers: str, kind: AnswerType = "string", limits: tuple[float, float] | None = None) -> Question:
    return Question("q1", "i.png", "When?", answers, range=limits, answer_type=kind)


TOKYO, GAS_OF_A_TOWN = "\u6771\u4eac", "\u90fd\u5e02\u30ac\u30b9\u306e"
CAPITAL_IS_TOKYO = f"\u65e5\u672c\u306e\u9996\u90fd\u306f{TOKYO}\u3067\u3042\u308b\u3002"


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ("1872", SENTENCE),
        ("the Falk Bank", "FALK BANK owns it"),
        ("Cafe Dorn", "He met her at Café Dorn."),
        ("12345", "About 12,345 guests."),
        ("1999", "It opened on 12 March 1999."),
        ("March 1999", "It opened on March 12th, 1999."),
        ("12 March 1999", "Opened 1999-03-12."),
        ("3 April 2001", "The 3rd of April 2001 was cold."),
        ("May 1804", "In May, 1804 it burnt."),
        ("2.5", "A weight of 2.50 tons"),
        (TOKYO, CAPITAL_IS_TOKYO),
        (TOKYO, f"NHK{TOKYO}1872"),
        ("NHK", f"NHK{TOKYO}"),
        ("\u30ac\u30b9", GAS_OF_A_TOWN),
        ("\u0926\u093f\u0932", "\u0926\u093f\u0932"),  # Hindi, with a vowel sign
        ("\u05e9\u05dc\u05d5\u05dd", "\u05e9\u05c1\u05b8\u05dc\u05d5\u05b9\u05dd"),  # Hebrew, with points in the text
    ],
)
def test_an_answer_occurs_however_it_is_written(answer: str, text: str) -> None:
    judgement = annotate_by_string(question(answer), passage(text))
    assert judgement.relevant
    assert judgement.answer == answer


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ("187", SENTENCE),
        ("oak", "It is made of oakum."),
        ("1950", "It flourished in the 1950s."),
        ("5", "The lowest was -5 degrees."),
        ("12", "About 12,345 guests."),
        ("2", "A weight of 2.5 tons"),
        ("\u4eac\u6771", CAPITAL_IS_TOKYO),  # in another order
        ("\u30ab\u30b9", GAS_OF_A_TOWN),  # kasu is not gasu
        ("\uc11c\uc6b8", "\uc11c\uc6b8\uc740"),  # Korean has spaces: words stay whole
        ("\u0926\u093f\u0932", "\u0926\u093e\u0932"),  # Hindi: dil, dal
        ("\u0e14\u0e38", "\u0e14\u0e39"),  # Thai: du, duu
        ("Gold Tower", "It is old."),  # the title is no evidence
        ("", "It is old."),
        ("!", "It is old!"),
    ],
)
def test_an_answer_is_bounded_by_tokens_and_stands_in_the_text(answer: str, text: str) -> None:
    assert not annotate_by_string(question(answer), passage(text)).relevant


def test_the_answer_is_the_alias_that_occurs() -> None:
    judgement = annotate_by_string(question("USA", "United States"), passage("It lies in the United States."))
    assert judgement.answer == "United States"


INDIA = question("India", "in", "IN", "Republic of India", "the IND")
ITALY = question("Italy", "it", "IT")
NORWAY = question("Norway", "no", "Kingdom of Norway")
STATES = question("United States of America", "us", "US", "the US", "USA", "America")
BRITAIN = question("United Kingdom", "gb", "UK")


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        (INDIA, "It is most active in the morning. In winter it rests."),
        (ITALY, "It is small. No one keeps it."),
        (NORWAY, "There is no record of it. No. 4 is lost. NO SMOKING"),
        (STATES, "It came to us from afar. Us and them. A USB port."),
        (BRITAIN, "It weighs 4 gb. The Ukraine"),
        (INDIA, "It came by ship, INDeed."),
    ],
)
def test_a_word_like_a_country_code_is_not_evidence(asked: Question, text: str) -> None:
    assert not annotate_by_string(asked, passage(text)).relevant
    assert not states_a_part(asked, passage(text))


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        (INDIA, "It is endemic to IN-KA, a state."),
        (INDIA, "Team: IND."),
        (STATES, "It is found in the US."),
        (STATES, "\u5728US\u7684"),
        (STATES, "It cost US$5."),
        (STATES, "It lives in Ohio, USA, alone."),
        (BRITAIN, "It is sold in the UK, too."),
    ],
)
def test_a_code_in_capitals_is_evidence_of_the_first_answer(asked: Question, text: str) -> None:
    assert annotate_by_string(asked, passage(text)).answer == asked.answers[0]
    assert states_a_part(asked, passage(text))


def test_a_short_name_is_found_as_it_is_written() -> None:
    mao = question("Mao Zedong", "Mao")
    assert annotate_by_string(mao, passage("Mao spoke first.")).answer == "Mao Zedong"
    assert not annotate_by_string(mao, passage("The mao is a shrub.")).relevant


def test_a_short_answer_that_is_not_a_code_is_found() -> None:
    assert annotate_by_string(question("US"), passage("sold by us")).answer == "US"  # the first answer is no alias
    assert annotate_by_string(question("India", "IN", "republic of india"), passage("The Republic of India")).relevant
    assert annotate_by_string(question("oak wood", "4x4"), passage("a 4x4 car")).relevant
    assert annotate_by_string(question("x", "in\u6771"), passage("IN\u6771")).relevant
    assert annotate_by_string(question("2", "two"), passage("It has two legs.")).answer == "two"
    assert annotate_by_string(question("x&&y", "red&&tan", kind="multi_answer"), passage("Red and tan.")).relevant
    assert annotate_by_string(question("Seoul", "\N{HANGUL SYLLABLE SEO}"), passage("\N{HANGUL SYLLABLE SEO}")).relevant


@pytest.mark.parametrize("answers", [("no",), ("No.",), ("yes", "yes, it is")])
def test_yes_and_no_are_not_searched(answers: tuple[str, ...]) -> None:
    """A "no" that stands in a passage ("There is no record of it") doesn't answer the question."""
    asked = question(*answers)
    text = "There is no record of it. Yes, it is."
    assert annotate_by_string(asked, passage(text)).label == "unclear"
    assert not states_a_part(asked, passage(text))
    assert annotate_by_string(question("No Gods"), passage("It is the church of No Gods.")).relevant


def test_a_multi_answer_needs_every_part() -> None:
    films = question("Silent Road && Paper Moon", "Paper Moon && Red Sea", kind="multi_answer")
    assert annotate_by_string(films, passage("Paper Moon, then Silent Road")).answer == "Silent Road && Paper Moon"
    assert annotate_by_string(films, passage("The Red Sea and Paper Moon.")).answer == "Paper Moon && Red Sea"
    assert not annotate_by_string(films, passage("Paper Moon alone")).relevant
    assert states_a_part(films, passage("Paper Moon alone"))
    assert not states_a_part(films, passage("The paper, alone"))


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("It is 45 metres tall.", "45 metres"),  # the reference itself
        ("It is 46.5 metres tall.", "46.5 metres"),  # within the range
        ("It is 48 metres tall.", None),  # beyond it
        ("It is 46 years old.", None),  # within it, but another unit
    ],
)
def test_a_number_answers_within_its_range_and_with_its_unit(text: str, answer: str | None) -> None:
    judgement = annotate_by_string(question("45 metres", kind="numerical", limits=(43, 47)), passage(text))
    assert judgement.relevant == (answer is not None)
    assert judgement.answer == (answer or "")


@pytest.mark.parametrize(
    ("asked", "text", "answer"),
    [
        (question("2000000", kind="numerical", limits=(1.8e6, 2.2e6)), "about 1.9 million inhabitants", "1900000"),
        (question("1.9 million", kind="numerical", limits=(1.8e6, 2.2e6)), "It has 1.9 million users.", "1900000"),
        (question("2 million users", kind="numerical", limits=(1e6, 3e6)), "1.1 million users", "1100000 users"),
        (question("1.9 million", kind="numerical", limits=(1.8, 2.0)), "It has 1.9 million users.", "1.9 million"),
        (question("1,950 m", "1.95 thousand m", kind="numerical", limits=(1900, 2000)), "1.95 thousand m", "1950 m"),
        (question("20–30 kg", kind="numerical", limits=(20, 30)), "It weighs 25.50 kg", "25.5 kg"),
        (question("50000", kind="numerical", limits=(49e3, 51e3)), "5\u4e07\u4eba", "50000"),
        (question("-5 degrees", kind="numerical", limits=(-6, -4)), "It fell to -4.5 degrees.", "-4.5 degrees"),
    ],
)
def test_a_number_is_trained_as_the_official_score_reads_it(asked: Question, text: str, answer: str) -> None:
    assert annotate_by_string(asked, passage(text)).answer == answer
    assert infoseek.score_one(answer, asked) == 1.0


@given(
    number=st.decimals(min_value=-9999, max_value=9999, places=3),
    magnitude=st.sampled_from(["", "thousand", "million", "trillion"]),
    unit=st.sampled_from(["", "km", "people"]),
    width=st.floats(0, 2),
)
def test_whatever_number_is_found_in_a_range_scores(number: Decimal, magnitude: str, unit: str, width: float) -> None:
    value = float(number) * {"": 1, "thousand": 1e3, "million": 1e6, "trillion": 1e12}[magnitude]
    room = abs(value) * (width + 1e-9) + 1e-6  # 129.181 times 1e3 is no whole number
    ends = value - room, value + room
    asked = question(f"{value:f} {unit}", kind="numerical", limits=ends)
    answer = annotate_by_string(asked, passage(f"It is {number} {magnitude} {unit}")).answer
    assert answer
    assert infoseek.score_one(answer, asked) == 1.0


def test_no_number_lies_in_a_range_that_descends() -> None:
    low = question("430 m below the sea", kind="numerical", limits=(-387, -473))
    assert not annotate_by_string(low, passage("It lies at -430 m, -387 m or -473 m.")).relevant


words = st.lists(st.text(alphabet="abcdefgh", min_size=1, max_size=5), min_size=1, max_size=4)


@given(before=words, answer=words, after=words)
def test_any_run_of_words_occurs_in_a_text_that_contains_it(before, answer, after) -> None:
    text = " ".join([*before, *answer, *after]).upper() + "."
    assert annotate_by_string(question(" ".join(answer)), passage(text)).relevant


@given(st.text())
def test_any_text_is_tokenized_without_an_error_and_stays_itself(text: str) -> None:
    tokens = tokenize(text)
    assert all(tokens)
    is_word = bool(tokens) and tokens not in (("yes",), ("no",))
    assert annotate_by_string(question(text), passage(text)).relevant == is_word


def test_the_parts_of_a_list_are_joined_in_one_way() -> None:
    colours = question("red&&blue | ", "green && &&teal", kind="multi_answer")
    assert annotate_by_string(colours, passage("Green and teal.")).answer == "green && teal"
    assert canonical_answer(question("", "a&&b", kind="multi_answer")) == "a && b"
    assert canonical_answer(question("A && B")) == "A && B"  # no list: the characters are the answer's own


def test_an_empty_list_does_not_count_as_an_answer() -> None:
    assert not annotate_by_string(question("&&", " ", kind="multi_answer"), passage("It is old.")).relevant

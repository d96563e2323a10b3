from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reflectune.core.types import Entry, Passage, Section
from reflectune.retrieval.passages import first_sentence, split_passages


def owl(*sections: Section, summary: str = "The barn owl is a bird. It hunts at night.") -> Entry:
    return Entry("Q1", "Barn owl", summary=summary, sections=sections)


def test_each_paragraph_is_a_passage_that_knows_its_place() -> None:
    entry = owl(Section("Diet", "It eats mice.\n\nAnd  voles,\n too."), Section("Range", "It lives in Europe."))
    assert split_passages(entry) == [
        Passage("Q1", 0, 0, "Barn owl", "", "Diet", "It eats mice."),
        Passage("Q1", 0, 1, "Barn owl", "", "Diet", "And voles, too."),
        Passage("Q1", 1, 0, "Barn owl", "", "Range", "It lives in Europe."),
    ]


def test_the_lead_is_the_first_sentence_of_the_summary_and_changes_nothing_else() -> None:
    entry = owl(Section("Diet", "It eats mice.\nAnd voles."), Section("Range", "Europe."))
    led = split_passages(entry, lead="first_sentence")
    assert {passage.lead for passage in led} == {"The barn owl is a bird."}
    assert [(p.id, p.heading, p.text) for p in led] == [(p.id, p.heading, p.text) for p in split_passages(entry)]


def test_sections_without_prose_are_left_out_and_the_others_keep_their_index() -> None:
    entry = owl(
        Section("See also", "Tawny owl"),
        Section("Diet", "Mice."),
        Section(" EXTERNAL LINKS ", "x"),
        Section("", "Owl."),
    )
    assert [(passage.section, passage.text) for passage in split_passages(entry)] == [(1, "Mice."), (3, "Owl.")]


def test_an_entry_without_sections_is_read_from_its_summary_without_a_lead() -> None:
    passages = split_passages(owl(summary="A bird.\n\nIt hunts."), lead="first_sentence")
    assert [(p.section, p.index, p.heading, p.lead, p.text) for p in passages] == [
        (0, 0, "", "", "A bird."),
        (0, 1, "", "", "It hunts."),
    ]


@pytest.mark.parametrize(
    ("text", "paragraphs"),
    [
        ("One.\n\nTwo.", ["One.", "Two."]),
        ("One.\nTwo.", ["One.", "Two."]),
        ("One.\n \t\n  Two.", ["One.", "Two."]),
        ("One,\n  and so on.", ["One, and so on."]),
    ],
)
def test_where_a_paragraph_ends(text: str, paragraphs: list[str]) -> None:
    assert [passage.text for passage in split_passages(owl(Section("Diet", text)))] == paragraphs


@pytest.mark.parametrize("text", ["", " \n\n \n"])
def test_nothing_written_gives_no_passage(text: str) -> None:
    assert split_passages(owl(Section("Diet", text))) == []
    assert split_passages(owl(summary=text)) == []


@given(st.lists(st.text(alphabet="ab.\n \t", max_size=30), min_size=1, max_size=4))
def test_no_word_is_lost_or_doubled_and_ids_are_unique(texts: list[str]) -> None:
    passages = split_passages(owl(*(Section(f"Part {i}", text) for i, text in enumerate(texts))))
    assert [word for passage in passages for word in passage.text.split()] == [
        word for text in texts for word in text.split()
    ]
    assert len({passage.id for passage in passages}) == len(passages)
    assert all(passage.text == " ".join(passage.text.split()) != "" for passage in passages)


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("One. Two.", "One."),
        ("No end here", "No end here"),
        ("  Wrapped\nlines. Two.", "Wrapped lines."),
        ("Is it? Yes.", "Is it?"),
        ("It weighs 3.5 kg. It flies.", "It weighs 3.5 kg."),
        ("J. R. R. Tolkien was a writer. He taught.", "J. R. R. Tolkien was a writer."),
        ("The U.S. state of Ohio is large. So there.", "The U.S. state of Ohio is large."),
        ("The town (c. 1753) lies on St. Mary's Isle. Two.", "The town (c. 1753) lies on St. Mary's Isle."),
        ("It said “hello.” Then it left.", "It said “hello.”"),
        ("It is first. Two.", "It is first."),
        ("", ""),
    ],
)
def test_first_sentence(text: str, first: str) -> None:
    assert first_sentence(text) == first

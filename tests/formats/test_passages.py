import pytest
from hypothesis import given
from hypothesis import strategies as st

from reflectune.core.types import Entry, Passage, Section
from reflectune.formats.passages import Cut, first_sentence, sentences, split_passages


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


CUTS: list[Cut] = ["paragraphs", "sections", "windows", "words"]
ARTICLES = st.lists(
    st.tuples(st.sampled_from(["", "Diet", "History"]), st.text(alphabet="ab. \n\t?St", max_size=60)),
    min_size=1,
    max_size=5,
)


@given(ARTICLES, st.sampled_from(CUTS), st.integers(1, 9))
def test_every_cut_holds_every_word_once_in_order(parts, cut, size) -> None:
    entry = owl(*(Section(title, text) for title, text in parts))
    passages = split_passages(entry, cut=cut, size=size if cut in ("windows", "words") else 0)
    assert " ".join(p.text for p in passages).split() == " ".join(text for _, text in parts).split()
    assert len({p.id for p in passages}) == len(passages)
    assert [(p.section, p.index) for p in passages] == sorted((p.section, p.index) for p in passages)
    assert all(p.text == " ".join(p.text.split()) != "" and p.heading == parts[p.section][0] for p in passages)


@given(ARTICLES, st.integers(1, 9))
def test_windows_hold_whole_sentences_up_to_their_size(parts, size) -> None:
    entry = owl(*(Section(title, text) for title, text in parts))
    for passage in split_passages(entry, cut="windows", size=size):
        inside = list(sentences(passage.text))
        assert len(passage.text.split()) <= size or len(inside) == 1
        assert " ".join(inside) == passage.text


def test_a_window_is_closed_when_the_next_sentence_does_not_fit() -> None:
    entry = owl(Section("Diet", "One two. Three four five. Six. Seven eight nine ten eleven twelve. End."))
    assert [p.text for p in split_passages(entry, cut="windows", size=5)] == [
        "One two. Three four five.",
        "Six.",
        "Seven eight nine ten eleven twelve.",
        "End.",
    ]


def test_windows_and_sections_stay_within_a_section() -> None:
    entry = owl(
        Section("Diet", "It eats mice.\n\nAnd voles."), Section("References", "A book."), Section("Range", "All.")
    )
    assert [(p.section, p.text) for p in split_passages(entry, cut="sections")] == [
        (0, "It eats mice. And voles."),
        (2, "All."),
    ]
    assert [p.section for p in split_passages(entry, cut="windows")] == [0, 2]


def test_words_run_across_sections_and_belong_where_they_begin() -> None:
    entry = owl(Section("A", "a b c"), Section("Empty", ""), Section("B", "d e f g"))
    passages = split_passages(entry, cut="words", size=2)
    assert [(p.section, p.index, p.heading, p.text) for p in passages] == [
        (0, 0, "A", "a b"),
        (0, 1, "A", "c d"),
        (2, 0, "B", "e f"),
        (2, 1, "B", "g"),
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("No end here", ["No end here"]),
        ("  Wrapped\nlines. Two! Three? Four", ["Wrapped lines.", "Two!", "Three?", "Four"]),
        ("It weighs 3.5 kg. It flies.", ["It weighs 3.5 kg.", "It flies."]),
        ("J. R. R. Tolkien was a writer. He taught.", ["J. R. R. Tolkien was a writer.", "He taught."]),
        ("The U.S. state of Ohio is large. So there.", ["The U.S. state of Ohio is large.", "So there."]),
        ("It lies (c. 1753) on St. Mary's Isle. St. Gallen.", ["It lies (c. 1753) on St. Mary's Isle.", "St. Gallen."]),
        ("It said “hello.” Then it left.", ["It said “hello.”", "Then it left."]),
        ("It is first. Two.", ["It is first.", "Two."]),
        (
            "\u52d5\u7269\u3002\u300c\u9b5a\uff01\u300d Ja. Nein\u3002",  # Japanese, without a space
            ["\u52d5\u7269\u3002", "\u300c\u9b5a\uff01\u300d", "Ja.", "Nein\u3002"],
        ),
        ("\u092f\u0939 \u0939\u0964 \u0935\u0939\u0964", ["\u092f\u0939 \u0939\u0964", "\u0935\u0939\u0964"]),
    ],
)
def test_sentences_end_where_a_reader_would_say(text: str, expected: list[str]) -> None:
    assert list(sentences(text)) == expected
    assert first_sentence(text) == "".join(expected[:1])


def test_a_size_for_a_cut_without_one_is_refused() -> None:
    with pytest.raises(ValueError, match="the cut `paragraphs` doesn't read `size`"):
        split_passages(owl(Section("A", "a")), size=3)

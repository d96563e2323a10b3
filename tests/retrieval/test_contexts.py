import dataclasses

from hypothesis import given
from hypothesis import strategies as st

from reflectune.core.types import Passage
from reflectune.formats.hits import Hit
from reflectune.retrieval.contexts import Document, find_documents, shorten

ARTICLES = {
    "e1": [Passage("e1", 0, i, "T1", "", "H", text) for i, text in enumerate(["It is red.", "It eats mice at night."])],
    "e2": [Passage("e2", 0, 0, "T2", "", "H", "It eats mice.")],
    "e3": [],
}
HITS = [Hit("e1", 0.9, 1), Hit("e2", 0.4, 2), Hit("e3", 0.3, 3)]


def test_the_passages_that_share_most_words_come_first_with_their_entrys_score() -> None:
    (documents,) = find_documents(["What does it eat: mice?"], [HITS], ARTICLES.__getitem__, 2)
    assert [(document.passage.id, document.score, document.rank, document.found) for document in documents] == [
        ("e2#0.0", 0.4, 1, "2 of 3 (similarity 0.40; first 0.90)"),
        ("e1#0.1", 0.9, 2, "1 of 3 (similarity 0.90; first 0.90)"),
    ]


def test_without_hits_or_passages_there_are_no_documents() -> None:
    assert find_documents(["What?"] * 2, [[], HITS[2:]], ARTICLES.__getitem__, 5) == [[], []]


@given(st.lists(st.integers(1, 9), min_size=1, max_size=8), st.integers(0, 60))
def test_a_document_is_cut_at_a_sentence_and_no_more_than_needed(lengths: list[int], room: int) -> None:
    sentences = [" ".join(["Word"] * length) + "." for length in lengths]
    document = Document(Passage("e", 0, 0, "T", "", "H", " ".join(sentences)), 0.5, 1)

    def count(passage: Passage) -> int:
        return 5 + len(passage.text.split())  # the instruction takes 5

    shortened = shorten(document, room, count)
    fitting = [k for k in range(1, len(sentences) + 1) if 5 + sum(lengths[:k]) <= room]
    if not fitting:
        assert shortened is None
    elif fitting[-1] == len(sentences):
        assert shortened is document
    else:
        kept = dataclasses.replace(document.passage, text=" ".join(sentences[: fitting[-1]]))
        assert shortened == Document(kept, 0.5, 1, cut=True)

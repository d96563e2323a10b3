"""Passages inside the entries that were found, and their summaries."""

from collections.abc import Sequence
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from reflectune.core.types import Entry, Passage, Section
from reflectune.formats.hits import Hit
from reflectune.formats.passages import split_passages
from reflectune.retrieval.indexes.building import build_index
from reflectune.retrieval.rerankers.words import bm25_scores
from reflectune.retrieval.retrievers.entry_retriever import EntryRetriever
from reflectune.retrieval.retrievers.queries import Query
from reflectune.retrieval.retrievers.two_stage import (
    BestPassages,
    PassagesInside,
    Summaries,
    passages_inside,
    summary_of,
)

IMAGE = Image.new("RGB", (4, 4), "red")
WORDS = ("owl", "mouse", "tower", "night", "the")


def passage(entry: str, index: int, text: str) -> Passage:
    return Passage(entry, 0, index, f"Title {entry}", "", "", text)


ARTICLES = {
    "a": [passage("a", 0, "the owl"), passage("a", 1, "the mouse at night")],
    "b": [passage("b", 0, "the tower"), passage("b", 1, "night night"), passage("b", 2, "the owl")],
    "c": [],
    "d": [passage("d", 0, "an old tower of stone")],
}


def hits_of(names: Sequence[str]) -> list[Hit]:
    return [Hit(name, 1 / rank, rank, kb="k", parts={"image": 0.5}) for rank, name in enumerate(names, start=1)]


@given(
    rows=st.lists(
        st.tuples(st.lists(st.sampled_from("abcd"), max_size=6), st.lists(st.sampled_from(WORDS), max_size=3)),
        max_size=4,
    ),
    top=st.integers(1, 12),
)
@settings(deadline=None)
def test_passages_come_from_the_entries_found_best_first(rows: list[tuple[list[str], list[str]]], top: int) -> None:
    queries = [Query(IMAGE, " ".join(words)) for _, words in rows]
    entries = [hits_of(names) for names, _ in rows]
    found = passages_inside(queries, entries, ARTICLES.__getitem__, top)
    assert len(found) == len(rows)
    for place, ((names, words), hits) in enumerate(zip(rows, found, strict=True)):
        once = list(dict.fromkeys(names))
        choice = [each for name in once for each in ARTICLES[name]]
        scores = bm25_scores(" ".join(words), choice)
        order = sorted(range(len(choice)), key=lambda number: (-scores[number], number))[:top]
        assert [hit.passage for hit in hits] == [choice[number] for number in order]
        assert [hit.score for hit in hits] == [scores[number] for number in order]
        assert [hit.rank for hit in hits] == list(range(1, len(order) + 1))
        for hit in hits:
            first = 1 / (names.index(hit.passage.entry_id) + 1)  # an entry that comes twice counts at its first place
            assert hit.parts == {"passage": hit.score, "entry": first, "image": 0.5}
            assert hit.kb == "k"
        alone = passages_inside([queries[place]], [entries[place]], ARTICLES.__getitem__, top)
        assert alone == [hits]


def test_without_a_text_passages_keep_the_order_of_their_entries() -> None:
    queries = [Query(IMAGE), Query(IMAGE, "tower"), Query(IMAGE)]
    rows = [hits_of("ba"), hits_of("ab"), hits_of("d")]
    first, second, third = passages_inside(queries, rows, ARTICLES.__getitem__, 4)
    assert [hit.passage.id for hit in first] == ["b#0.0", "b#0.1", "b#0.2", "a#0.0"]
    assert {hit.score for hit in first} == {0.0}
    assert second[0].passage.id == "b#0.0"
    assert [hit.passage.id for hit in third] == ["d#0.0"]
    (asked,) = passages_inside([Query(IMAGE, inside="tower")], rows[1:2], ARTICLES.__getitem__, 4)
    assert asked == second


def test_a_multimodal_knowledge_base_is_searched_in_two_stages(kb, encoder, tmp_path: Path) -> None:
    retriever = EntryRetriever(build_index(kb, encoder, tmp_path / "index"), encoder)
    queries = [Query(IMAGE, "Which mice does it eat?"), Query(text="Owl nº 4"), Query(IMAGE)]
    stage = PassagesInside("owls", retriever, lambda name: split_passages(kb.get(name)), entries=2)
    entries = retriever.search(queries, 2)
    for found, hits in zip(stage.search(queries, 3), entries, strict=True):
        assert {hit.passage.entry_id for hit in found} <= {hit.entry_id for hit in hits}
        assert 0 < len(found) <= 3
        by_id = {hit.entry_id: hit for hit in hits}
        for hit in found:
            assert hit.parts["entry"] == by_id[hit.passage.entry_id].score
            assert by_id[hit.passage.entry_id].parts.items() <= hit.parts.items()


class Ranked:
    """Finds the entries a, b, c and d for every query, in this order."""

    def search(self, queries, top_n, *, weights=None):
        return [hits_of("abcd")[:top_n] for _ in queries]


def test_pairs_of_image_and_section_are_ranked_by_their_entries_and_none_crowds_out_another() -> None:
    queries = [Query(IMAGE, "night mouse"), Query(IMAGE, "the tower"), Query(IMAGE)]
    stage = BestPassages("pairs", Ranked(), ARTICLES.__getitem__)
    nearest = [["a#0.1", "b#0.1", "d#0.0"], ["a#0.0", "b#0.0", "d#0.0"], ["a#0.0", "b#0.0", "d#0.0"]]
    for top in range(1, 5):
        found = stage.search(queries, top)
        entries = "abcd"[:top].replace("c", "")  # it has no text
        assert [[hit.passage.id for hit in hits] for hits in found] == [ids[: len(entries)] for ids in nearest]
        for query, hits in zip(queries, found, strict=True):
            assert [(hit.score, hit.rank) for hit in hits] == [(1 / rank, rank) for rank in (1, 2, 4)[: len(hits)]]
            assert stage.search([query], top) == [hits]
    (by_words,) = PassagesInside("pairs", Ranked(), ARTICLES.__getitem__).search(queries[1:2], 2)
    assert "a" not in {hit.passage.entry_id for hit in by_words}  # the nearest entry has no say there
    assert found[0][1].parts == {"passage": bm25_scores("night mouse", ARTICLES["b"])[1], "entry": 0.5, "image": 0.5}


def test_pairs_of_image_and_summary_are_ranked_by_their_entries(kb, encoder, tmp_path: Path) -> None:
    retriever = EntryRetriever(build_index(kb, encoder, tmp_path / "index"), encoder)
    queries = [Query(IMAGE, "an owl"), Query(text="Owl nº 4")]
    found = Summaries("pairs", retriever, kb).search(queries, 4)
    for passages, hits in zip(found, retriever.search(queries, 4), strict=True):
        assert [hit.passage.id for hit in passages] == [f"{hit.entry_id}#-1.0" for hit in hits]
        assert [hit.passage.text for hit in passages] == ["A bird."] * 4
        assert [(hit.score, hit.rank, hit.kb, hit.parts) for hit in passages] == [
            (hit.score, hit.rank, hit.kb, hit.parts) for hit in hits
        ]


def test_an_entry_without_summary_gives_its_first_passage() -> None:
    entry = Entry("e", "Owl", sections=(Section("Diet", "It eats mice.\n\nAnd voles."),))
    assert summary_of(entry) == split_passages(entry)[0]
    assert summary_of(Entry("e", "Owl")) is None

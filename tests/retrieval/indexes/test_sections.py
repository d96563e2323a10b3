"""An index of sections: its rows, its search, what a prompt reads of it, and gold ids that stay those of entries."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from reflectune.core.errors import UserError
from reflectune.core.types import Entry, Section
from reflectune.formats.knowledge_base import KnowledgeBase, write_knowledge_base
from reflectune.inference.operators.requests import SearchRequest
from reflectune.inference.operators.searching import SearchSettings, knowledge_bases
from reflectune.retrieval.build_index import IndexConfig
from reflectune.retrieval.build_index import build_index as build_command
from reflectune.retrieval.indexes.building import build_index
from reflectune.retrieval.indexes.entry_index import load_index
from reflectune.retrieval.indexes.images import encode_images, places_of
from reflectune.retrieval.indexes.near_duplicates import Omission
from reflectune.retrieval.retrievers.entry_retriever import EntryRetriever
from reflectune.retrieval.retrievers.queries import Query, equation_7

from .conftest import Counting, files, vectors

DIET = "It eats mice. It eats voles. It drinks. It sleeps afterwards."
HOW = {"batch_size": 3, "shard_rows": 4}


@pytest.fixture
def articles(entries: list[Entry]) -> list[Entry]:
    """Ten entries: of three sections with prose and one without, but for one of a summary, and one without text."""
    body = (Section("", "An owl."), Section("Diet", DIET), Section("References", "[1]"), Section("Range", "Norway."))
    made = [dataclasses.replace(entry, sections=body) for entry in entries]
    made[4] = dataclasses.replace(made[4], sections=(), summary="Grey.")
    made[7] = dataclasses.replace(made[7], sections=(), summary="")
    return made


@pytest.fixture
def sectioned(tmp_path: Path, articles: list[Entry]) -> KnowledgeBase:
    return write_knowledge_base(tmp_path / "articles", articles, name="owls", image_root="..", shard_size=4)


def pairs(articles: list[Entry]) -> list[tuple[Entry, int, str]]:
    """Each pair's entry, section and text."""
    texts = {0: "An owl.", 1: "Diet. It eats mice. It eats voles. It drinks.", 3: "Range. Norway."}
    found = [
        (entry, number, f"{entry.title}. {text}")
        for entry in articles
        if entry.sections
        for number, text in texts.items()
    ]
    return sorted([*found, (articles[4], 0, f"{articles[4].title}. Grey.")], key=lambda pair: articles.index(pair[0]))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_row_is_an_entrys_first_image_and_a_sections_summary(sectioned, articles, encoder, tmp_path, workers) -> None:
    index = build_index(sectioned, encoder, tmp_path / "index", sections=True, workers=workers, **HOW)
    expected = pairs(articles)
    assert [(index.entry_ids[owner], section) for owner, section in zip(index.owner, index.sections, strict=True)] == [
        (entry.id, section) for entry, section, _ in expected
    ]
    np.testing.assert_allclose(
        vectors(index, "title"), encoder.encode_texts([text for *_, text in expected]), atol=1e-6
    )
    plain = build_index(sectioned, encoder, tmp_path / "plain", **HOW)
    first = {plain.entry_ids[owner]: row for row, owner in reversed(list(enumerate(plain.owner)))}
    with_images = [place for place, (entry, *_) in enumerate(expected) if entry.images]
    rows = [first[expected[place][0].id] for place in with_images]
    np.testing.assert_allclose(vectors(index, "image")[with_images], vectors(plain, "image")[rows], atol=1e-6)


def test_an_image_of_several_sections_is_encoded_once(sectioned, encoder) -> None:
    counted: list[int] = []

    class Counted(Counting):
        def encode_images(self, images):
            counted.append(len(images))
            return super().encode_images(images)

    entry = next(iter(sectioned))
    (batch,) = places_of(sectioned, [(0, entry), (1, entry), (2, entry)], 8)
    (made,) = encode_images(sectioned, Counted(encoder), [batch], 0)
    assert (counted, made.owners, len(made.vectors)) == ([len(entry.images)], [0, 1, 2], 3)


def test_queries_find_sections_and_entries_alike_by_comparing_everything(
    sectioned, articles, encoder, tmp_path, draw_image
) -> None:
    index = build_index(sectioned, encoder, tmp_path / "index", sections=True)
    retriever, expected = EntryRetriever(index, encoder), pairs(articles)
    queries = [Query(draw_image(3), "what does it eat"), Query(draw_image(5), "norway")]
    found = retriever.search_sections(queries, 7, weights=equation_7(0.3))
    entries = retriever.search(queries, 3, weights=equation_7(0.3))
    for query, hits, best in zip(queries, found, entries, strict=True):
        scores = 0.7 * vectors(index, "image") @ encoder.encode_images([query.image])[0]
        scores = scores + 0.3 * vectors(index, "title") @ encoder.encode_texts([query.text])[0]
        order = np.argsort(-scores, kind="stable")
        assert [(hit.entry_id, section) for hit, section in hits] == [
            (expected[row][0].id, expected[row][1]) for row in order[:7]
        ]
        assert [hit.score for hit, _ in hits] == pytest.approx(list(scores[order[:7]]), abs=1e-6)
        names = list(dict.fromkeys(expected[row][0].id for row in order))
        assert [hit.entry_id for hit in best] == names[:3]
    with pytest.raises(ValueError, match="entries, not sections"):
        EntryRetriever(build_index(sectioned, encoder, tmp_path / "plain"), encoder).search_sections(queries, 2)


@pytest.mark.parametrize("weight", [0.5, 1.0])
def test_a_prompt_reads_the_section_or_its_summary(sectioned, encoder, tmp_path, draw_image, weight) -> None:
    retriever = EntryRetriever(build_index(sectioned, encoder, tmp_path / "index", sections=True), encoder)
    request = SearchRequest(0, ("Owl nº 3. Diet. It eats mice. It eats voles. It drinks.", ""), {"pairs": (20, 2)})
    read = {}
    for text in ("section", "summary"):
        settings = SearchSettings(text_weight=weight)
        bases = knowledge_bases(retriever, None, sectioned, text, search=settings, top_n=0, lead="none")
        (found,) = bases.search([(draw_image(3), request)])
        by_text, by_image = (hits["pairs"] for hits in found.hits)
        assert len({hit.passage.id for hit in by_text}) == 20
        assert {hit.passage.entry_id for hit in by_image} == {"e3"}
        read[text] = next(hit.passage for hit in by_text if (hit.passage.entry_id, hit.passage.section) == ("e3", 1))
    assert (read["section"].text, read["summary"].text) == (DIET, DIET.removesuffix(" It sleeps afterwards."))
    assert (read["section"].id, read["summary"].id, read["section"].heading) == ("e3#1.-2", "e3#1.-1", "Diet")


@pytest.mark.parametrize("until", [1, 4, 8])
def test_a_build_that_was_cut_off_ends_in_the_same_bytes(sectioned, encoder, tmp_path, until) -> None:
    build_index(sectioned, encoder, tmp_path / "whole", sections=True, **HOW)
    with pytest.raises(KeyboardInterrupt):
        build_index(sectioned, Counting(encoder, until), tmp_path / "index", sections=True, **HOW)
    build_index(sectioned, encoder, tmp_path / "index", sections=True, **HOW)
    assert files(tmp_path / "index") == files(tmp_path / "whole")


def test_other_rows_articles_or_damaged_files_are_refused(sectioned, articles, encoder, tmp_path) -> None:
    build_index(sectioned, encoder, tmp_path / "index", sections=True)
    with pytest.raises(UserError, match="was built with the `rows` sections, now it is entries"):
        build_index(sectioned, encoder, tmp_path / "index")
    grown = write_knowledge_base(tmp_path / "grown", [*articles, Entry("more", "more")], name="owls", image_root="..")
    for use in (load_index, lambda folder, *rest: build_index(*rest, folder, sections=True)):
        with pytest.raises(UserError, match="was built with the knowledge base"):
            use(tmp_path / "index", grown, encoder)
    (tmp_path / "index/sections.npy").write_bytes((tmp_path / "index/section_entries.npy").read_bytes())
    with pytest.raises(UserError, match=r"sections\.npy"):
        load_index(tmp_path / "index", sectioned, encoder)


def test_a_test_image_is_left_out_of_every_section(sectioned, encoder, tmp_path) -> None:
    entry = next(iter(sectioned))
    omission = Omission(frozenset({(entry.id, entry.images[0])}), "list")
    index = build_index(sectioned, encoder, tmp_path / "index", sections=True, leave_out=omission)
    whole = build_index(sectioned, encoder, tmp_path / "whole", sections=True)
    assert whole.manifest["images"] - index.manifest["images"] == 3


def test_a_bad_image_of_several_sections_is_counted_once(sectioned, encoder, tmp_path) -> None:
    (tmp_path / "images/0.png").unlink()
    index = build_index(sectioned, encoder, tmp_path / "index", sections=True, on_error="skip", **HOW)
    assert index.manifest["left_out"] == {"image missing": 1}


def test_the_command_builds_it(sectioned, clip_folder, encoder, tmp_path, capsys) -> None:
    settings = {"knowledge": str(sectioned.folder), "output": str(tmp_path / "index"), "encoder": clip_folder}
    for dry_run in (True, False):
        build_command(IndexConfig(**settings, device="cpu", rows="sections", dry_run=dry_run))
    printed = capsys.readouterr().out
    assert f"would index 25 sections, 16 with an image, of {sectioned.folder}" in printed
    assert f"{tmp_path}/index: 25 sections, 16 with an image, of owls" in printed
    assert EntryRetriever(load_index(tmp_path / "index", sectioned, encoder), encoder).has_sections
    problems = " ".join(IndexConfig(**settings, rows="sections", summaries=True).problems())
    assert "`summaries` means nothing for `rows: sections`" in problems

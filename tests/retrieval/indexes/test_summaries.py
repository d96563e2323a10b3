"""Entries' summaries as a field of an index: built, grown, gone on with, searched, and refused where there are none."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from reflectune.core.errors import UserError
from reflectune.core.types import Entry, Section
from reflectune.formats.knowledge_base import KnowledgeBase, write_knowledge_base
from reflectune.formats.passages import summary_text
from reflectune.retrieval.build_index import IndexConfig
from reflectune.retrieval.build_index import build_index as build_command
from reflectune.retrieval.config import RetrieverConfig
from reflectune.retrieval.indexes.building import build_index
from reflectune.retrieval.indexes.entry_index import collection_of, load_index
from reflectune.retrieval.indexes.planning import plan_index
from reflectune.retrieval.indexes.trial import try_entries
from reflectune.retrieval.retrievers.entry_retriever import EntryRetriever, open_retriever
from reflectune.retrieval.retrievers.queries import Query, Weights, equation_3, equation_7
from reflectune.retrieval.stores.base import inner

from .conftest import Counting, files, vectors

HOW = {"batch_size": 2, "shard_rows": 4}


@pytest.fixture
def told(tmp_path: Path, entries: list[Entry]) -> list[Entry]:
    """Entries with a summary each, but for three: two have a section only, and one has no text at all."""
    made = [dataclasses.replace(entry, summary=f"Owl {n} hunts  by night.") for n, entry in enumerate(entries)]
    made[1] = dataclasses.replace(made[1], summary="", sections=(Section("Diet", "It eats mice.\n\nAnd voles."),))
    made[4] = dataclasses.replace(made[4], summary=" \n", sections=(Section("References", "x"), Section("", "Grey.")))
    made[7] = dataclasses.replace(made[7], summary="", sections=())
    return made


@pytest.fixture
def told_kb(tmp_path: Path, told: list[Entry]) -> KnowledgeBase:
    return write_knowledge_base(tmp_path / "told", told, name="owls", image_root="..", shard_size=4)


def test_a_summary_is_the_first_text_that_an_entry_has(told) -> None:
    texts = [summary_text(entry) for entry in told]
    assert texts[0] == "Owl 0 hunts by night."
    assert (texts[1], texts[4], texts[7]) == ("It eats mice.", "Grey.", "Owl nº 7")


def test_summaries_stand_beside_images_and_titles_that_stay_as_they_were(told_kb, told, encoder, tmp_path) -> None:
    index = build_index(told_kb, encoder, tmp_path / "index", summaries=True, **HOW)
    assert list(index.store.fields) == ["image", "title", "summary"]
    expected = encoder.encode_texts([summary_text(entry) for entry in told])
    np.testing.assert_allclose(vectors(index, "summary"), expected[np.asarray(index.owner)], atol=1e-6)
    other = build_index(told_kb, encoder, tmp_path / "plain", **HOW)
    assert collection_of(index.manifest) != collection_of(other.manifest)  # on a server each has rows of its own
    built, plain = files(tmp_path / "index"), files(tmp_path / "plain")
    assert built.keys() - plain.keys() == {"summary.f32"}
    assert all(built[name] == plain[name] for name in plain.keys() - {"manifest.json"})
    assert b"summary" not in plain["manifest.json"]


def test_what_it_takes_is_told_before(told_kb, encoder) -> None:
    plan, plain = (plan_index(told_kb, encoder, "auto", summaries=on) for on in (True, False))
    assert plan.disk * 2 == plain.disk * 3
    parts = try_entries(told_kb, encoder, batch_size=4, workers=0, summaries=True)
    assert [(part.kind, part.count) for part in parts] == [("images", 10), ("titles", 10), ("summaries", 10)]


def test_a_summary_that_is_cut_is_counted(tmp_path, told, encoder) -> None:
    told[2] = dataclasses.replace(told[2], summary="owl " * 500)
    kb = write_knowledge_base(tmp_path / "long", told, name="owls", image_root="..")
    with pytest.warns(UserWarning, match=f"1 of 20 titles and summaries are longer than the {encoder.longest} tokens"):
        build_index(kb, encoder, tmp_path / "index", summaries=True, **HOW)


@pytest.mark.parametrize("until", [1, 2, 5, 9])
def test_a_build_that_was_cut_off_ends_in_the_same_bytes(told_kb, encoder, tmp_path, until) -> None:
    build_index(told_kb, encoder, tmp_path / "whole", summaries=True, **HOW)
    with pytest.raises(KeyboardInterrupt):
        build_index(told_kb, Counting(encoder, until), tmp_path / "index", summaries=True, **HOW)
    if until > 4:  # a shard is there, of these settings
        with pytest.raises(UserError, match="was begun with summaries True, now it is False"):
            build_index(told_kb, encoder, tmp_path / "index", **HOW)
    build_index(told_kb, encoder, tmp_path / "index", summaries=True, **HOW)
    assert files(tmp_path / "index") == files(tmp_path / "whole")


@pytest.mark.parametrize("store", ["exact", "faiss"])
def test_entries_that_are_added_later_get_theirs(told_kb, told, encoder, tmp_path, store) -> None:
    first = write_knowledge_base(tmp_path / "first", told[:7], name="owls", image_root="..", shard_size=3)
    build_index(told_kb, encoder, tmp_path / "whole", summaries=True, store=store, **HOW)
    build_index(first, encoder, tmp_path / "index", summaries=True, store=store, **HOW)
    build_index(told_kb, encoder, tmp_path / "index", summaries=True, **HOW)
    assert files(tmp_path / "index") == files(tmp_path / "whole")


@pytest.mark.parametrize("built", [True, False], ids=["with", "without"])
def test_an_index_of_other_fields_is_refused(told_kb, encoder, tmp_path, built) -> None:
    build_index(told_kb, encoder, tmp_path / "index", summaries=built, **HOW)
    with pytest.raises(UserError, match=f"was built with the `summaries` {built}, now it is {not built}"):
        build_index(told_kb, encoder, tmp_path / "index", summaries=not built, **HOW)
    load_index(tmp_path / "index", told_kb, encoder)


@pytest.mark.parametrize("store", ["exact", "faiss"])
def test_scores_are_those_of_comparing_everything(told_kb, told, encoder, tmp_path, draw_image, store) -> None:
    index = build_index(told_kb, encoder, tmp_path / "index", summaries=True, store=store)
    retriever = EntryRetriever(index, encoder, title_weight=0.5, summary_share=0.5)
    image, text = encoder.encode_images([draw_image(3)])[0], encoder.encode_texts(["a white owl"])[0]
    by_image = 0.5 * inner(vectors(index, "image"), image) + 0.25 * inner(vectors(index, "title"), image)
    by_image += 0.25 * inner(vectors(index, "summary"), image)
    by_text = 0.5 * inner(vectors(index, "title"), text) + 0.5 * inner(vectors(index, "summary"), text)
    both = 0.7 * inner(vectors(index, "image"), image) + 0.3 * inner(vectors(index, "summary"), text)
    queries = [Query(draw_image(3)), Query(text="a white owl"), Query(draw_image(3), "a white owl")]
    found = [retriever.search([query], 10)[0] for query in queries[:2]]
    found += retriever.search(queries[2:], 10, weights=equation_7(0.3).with_summaries(1))
    for hits, rows in zip(found, (by_image, by_text, both), strict=True):
        best = {entry.id: rows[np.asarray(index.owner) == n].max() for n, entry in enumerate(told)}
        assert {hit.entry_id: hit.score for hit in hits} == pytest.approx(best, abs=1e-5)
        assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
    assert found[0] == retriever.exactly().search(queries[:1], 10)[0]
    assert [set(hits[0].parts) for hits in found] == [
        {"image", "title", "summary"},
        {"text_image", "text_title", "text_summary"},
        {"image", "title", "text_image", "text_title", "text_summary"},
    ]


def test_a_share_of_nothing_is_searched_for_as_ever(told_kb, encoder, tmp_path, draw_image) -> None:
    """The bits of scores and parts, on an index that has summaries and on one that hasn't."""
    queries = [Query(draw_image(number)) for number in range(4)]
    indexes = [build_index(told_kb, encoder, tmp_path / str(on), summaries=on) for on in (True, False)]
    plain = [EntryRetriever(index, encoder).search(queries, 6) for index in indexes]
    none = EntryRetriever(indexes[0], encoder, summary_share=0.0).search(queries, 6)
    assert plain[0] == plain[1] == none
    assert set(none[0][0].parts) == {"image", "title"}


def test_an_index_without_summaries_is_refused_where_they_weigh(told_kb, encoder, tmp_path, draw_image) -> None:
    index = build_index(told_kb, encoder, tmp_path / "index")
    told = "has no summaries; build one with `build_index --summaries`"
    with pytest.raises(UserError, match=told):
        EntryRetriever(index, encoder, summary_share=0.1).search([Query(draw_image(0))], 2)
    with pytest.raises(UserError, match=told):
        EntryRetriever(index, encoder).search([Query(text="owl")], 2, weights=Weights(text_summary=1))
    config = RetrieverConfig(index=str(tmp_path / "index"), summary_share=0.1)
    with pytest.raises(UserError, match=told):
        open_retriever(config, told_kb, image_roots=tmp_path, device="cpu")
    ranked = RetrieverConfig(ranked_entities=str(tmp_path / "index/manifest.json"), summary_share=0.1)
    assert "`summary_share` needs an `index`" in " ".join(ranked.problems())


def test_the_command_builds_what_a_config_searches(told_kb, clip_folder, encoder, tmp_path, draw_image, capsys) -> None:
    settings = {"encoder": clip_folder, "device": "cpu", "summaries": True}
    build_command(IndexConfig(knowledge=str(told_kb.folder), output=str(tmp_path / "index"), **settings, dry_run=True))
    assert "summaries/s" in capsys.readouterr().out
    build_command(IndexConfig(knowledge=str(told_kb.folder), output=str(tmp_path / "index"), **settings))
    assert "10 titles, as many summaries and 10 images of owls" in capsys.readouterr().out
    config = RetrieverConfig(index=str(tmp_path / "index"), title_weight=0.6, summary_share=1.0)
    retriever = open_retriever(config, told_kb, image_roots=tmp_path, device="cpu")
    index = load_index(tmp_path / "index", told_kb, encoder)
    weights = Weights(image=0.4, summary=0.6)
    expected = EntryRetriever(index, encoder).search([Query(draw_image(2))], 5, weights=weights)
    assert [[(hit.entry_id, hit.score) for hit in hits] for hits in retriever.search([Query(draw_image(2))], 5)] == [
        [(hit.entry_id, pytest.approx(hit.score)) for hit in hits] for hits in expected
    ]


def test_shares_move_weight_from_titles_to_summaries() -> None:
    assert equation_3(0.5).with_summaries(0) == equation_3(0.5)
    assert equation_3(0.5).with_summaries(0.5) == Weights(image=0.5, title=0.25, summary=0.25)
    assert equation_7(0.5).with_summaries(1) == Weights(image=0.5, text_summary=0.5)
    assert Weights(summary=1).with_summaries(1) == Weights(summary=1)
    with pytest.raises(ValueError, match="can't be searched with"):
        Weights(text_summary=1).of(Query(Image.new("RGB", (1, 1))))

"""Captions of images as the summaries of an index: encoded, remembered, searched, refused where they are others."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from reflectune.core.config import find_problems
from reflectune.core.errors import UserError
from reflectune.retrieval.build_index import IndexConfig, build_index
from reflectune.retrieval.indexes.building import build_index as build
from reflectune.retrieval.indexes.captions import CaptionedKnowledge
from reflectune.retrieval.indexes.entry_index import load_index
from reflectune.retrieval.retrievers.entry_retriever import EntryRetriever
from reflectune.retrieval.retrievers.queries import Query, Weights, modality_weights

from .conftest import Counting, vectors

Write = Callable[..., Path]


@pytest.fixture
def captions(tmp_path: Path, entries) -> Write:
    """Write captions of all entries but the last; others by id."""

    def write(name: str = "captions.jsonl", **others: str) -> Path:
        rows = {entry.id: f"An image of owl {n}" for n, entry in enumerate(entries[:-1])} | others
        path = tmp_path / name
        path.write_text("".join(json.dumps({"entry_id": key, "caption": text}) + "\n" for key, text in rows.items()))
        return path

    return write


@pytest.fixture
def built(kb, clip_folder, tmp_path, captions: Write) -> Callable[..., None]:
    """Run the command."""

    def build(output: str = "index", **settings) -> None:
        keys = {"knowledge": str(kb.folder), "encoder": clip_folder, "device": "cpu", "output": str(tmp_path / output)}
        build_index(IndexConfig(**keys, **settings))

    return build


def test_captions_are_encoded_as_summaries(built, captions: Write, kb, encoder, entries, tmp_path, capsys) -> None:
    built(captions=str(captions()), dry_run=True)
    assert "summaries/s" in capsys.readouterr().out
    built(captions=str(captions()))
    assert "10 titles, as many captions" in capsys.readouterr().out
    index = load_index(tmp_path / "index", kb, encoder)  # which knows the knowledge base without captions
    texts = [*(f"An image of owl {n}" for n in range(len(entries) - 1)), entries[-1].title]
    np.testing.assert_allclose(
        vectors(index, "summary"), encoder.encode_texts(texts)[np.asarray(index.owner)], atol=1e-6
    )
    retriever = EntryRetriever(index, encoder)
    retriever.check(modality_weights("IC", "IC"), captions=True)
    (hits,) = retriever.search([Query(text="An image of owl 3")], 1, weights=modality_weights("C", "C"))
    assert hits[0].entry_id == entries[3].id


def test_an_index_of_other_captions_is_refused(built, captions: Write, kb, encoder, tmp_path) -> None:
    built(captions=str(captions()))
    built(captions=str(captions().rename(tmp_path / "renamed.jsonl")))  # a finished one
    with pytest.raises(UserError, match=r"was built with the `captions` [0-9a-f]+, now it is"):
        built(captions=str(captions(e0="Another owl")))
    built("summaries", summaries=True)
    index = load_index(tmp_path / "summaries", kb, encoder)
    with pytest.raises(UserError, match="has no captions; write them"):
        EntryRetriever(index, encoder).check(modality_weights("I", "C"), captions=True)
    with pytest.raises(UserError, match=r"`captions` \(none\), now it is"):
        built("summaries", captions=str(captions()))


def test_shards_of_captions_are_not_taken_for_those_of_summaries(captions: Write, kb, encoder, tmp_path) -> None:
    with pytest.raises(KeyboardInterrupt):
        build(CaptionedKnowledge(kb, captions()), Counting(encoder, 1), tmp_path / "index", summaries=True)
    with pytest.raises(UserError, match=r"was begun with captions [0-9a-f]+, now it is"):
        build(kb, encoder, tmp_path / "index", summaries=True)


def test_captions_of_something_else_are_refused(kb, captions: Write, tmp_path) -> None:
    with pytest.raises(UserError, match=r"line 10: the knowledge base .* has no entry Q99"):
        CaptionedKnowledge(kb, captions(Q99="An owl"))
    (tmp_path / "bad.jsonl").write_text('{"entry_id": "x", "caption": " "}\n')
    with pytest.raises(UserError, match=r"bad.jsonl, line 1: found .*, expected"):
        CaptionedKnowledge(kb, tmp_path / "bad.jsonl")
    problems = find_problems(IndexConfig, {"captions": str(captions()), "summaries": True})
    assert "`captions` take the place of `summaries`; give one of the two" in problems
    problems = find_problems(IndexConfig, {"captions": str(captions()), "rows": "sections"})
    assert "`captions` means nothing for `rows: sections`; drop it" in problems


def test_a_knowledge_bases_captions_take_the_titles_place() -> None:
    assert modality_weights("I", "IC") == Weights(image=0.5, summary=0.5)
    assert modality_weights("IC", "C") == Weights(summary=0.5, text_summary=0.5)

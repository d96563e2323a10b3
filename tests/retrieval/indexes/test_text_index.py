"""An index of passages, and the search for a text in it."""

import dataclasses
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from reflectune.core.config import parse_config
from reflectune.core.errors import UserError
from reflectune.core.types import Entry, Section
from reflectune.formats.knowledge_base import KnowledgeBase, write_knowledge_base
from reflectune.formats.passages import split_passages
from reflectune.models.rendering.turns import passage_text
from reflectune.retrieval import build_index as command
from reflectune.retrieval.encoders.checkpoints import find_checkpoint
from reflectune.retrieval.encoders.encoder import load_encoder
from reflectune.retrieval.encoders.settings import TextSettings
from reflectune.retrieval.encoders.text_encoder import TextEncoder
from reflectune.retrieval.indexes import passages
from reflectune.retrieval.indexes.building import build_index
from reflectune.retrieval.indexes.entry_index import read_manifest
from reflectune.retrieval.indexes.text_index import Cutting, build_text_index, load_text_index
from reflectune.retrieval.retrievers.text_retriever import TextRetriever, open_text_retriever
from reflectune.retrieval.stores.ivf import FaissStore

from .conftest import Counting, files, two_processes

ANIMALS = ("owl", "bear", "fox", "whale", "wolf", "hawk", "seal")


@pytest.fixture
def kb(tmp_path: Path) -> KnowledgeBase:
    """Seven articles with none to three passages; one has no text at all."""
    entries = [
        Entry(
            f"e{place}",
            f"The {name}",
            summary=f"The {name} is an animal.",
            sections=tuple(Section(f"Part {n}", f"The {name} eats {n} things.") for n in range(place % 4)),
        )
        for place, name in enumerate(ANIMALS)
    ]
    entries.append(Entry("empty", "Nothing"))
    return write_knowledge_base(tmp_path / "kb", entries, name="animals", shard_size=3)


@pytest.fixture(scope="session")
def encoder() -> TextEncoder:
    settings = TextSettings(query_prefix="query: ", passage_prefix="passage: ")
    return TextEncoder(find_checkpoint("miniature/text"), settings, torch.device("cpu"), "")


@pytest.mark.parametrize("store", ["exact", "faiss"])
def test_a_search_finds_what_comparing_every_passage_does(kb, encoder, tmp_path, store) -> None:
    cutting = Cutting(lead="first_sentence")
    index = build_text_index(kb, encoder, tmp_path / "index", cutting, store=store, shard_entries=3)
    every = [passage for entry in kb for passage in split_passages(entry, lead="first_sentence")]
    assert [index.passage(row) for row in range(len(index.store))] == every
    queries = ["What does the fox eat?", "whale"]
    scores = encoder.encode_queries(queries) @ encoder.encode_passages([passage_text(p) for p in every]).T
    found = TextRetriever(index, encoder).search(queries, 4)
    for hits, row in zip(found, scores, strict=True):
        assert [hit.passage for hit in hits] == [every[place] for place in np.argsort(-row, kind="stable")[:4]]
        assert [hit.score for hit in hits] == pytest.approx(sorted(row, reverse=True)[:4], abs=2e-3)
        assert [(hit.rank, hit.kb) for hit in hits] == [(rank, "animals") for rank in range(1, 5)]
    assert len(TextRetriever(index, encoder).search(queries, 99)[0]) == len(every)
    assert TextRetriever(index, encoder).search([], 4) == []


def test_texts_are_compared_by_the_cosine_whichever_similarity_searches(kb, encoder, tmp_path) -> None:
    class Zeroing(TextEncoder):
        """Has a vector of zeros for an empty text."""

        def encode_queries(self, texts):
            return super().encode_queries(texts) * np.array([[bool(text)] for text in texts], dtype=np.float32)

    dot = dataclasses.replace(encoder.settings, similarity="dot")
    plain = Zeroing(find_checkpoint("miniature/text"), dot, torch.device("cpu"), "")
    texts = ["What does the fox eat?", "whale", ""]
    assert not np.allclose(np.linalg.norm(plain.encode_queries(texts[:2]), axis=1), 1, atol=0.1)
    vectors = TextRetriever(build_text_index(kb, plain, tmp_path / "dot", Cutting()), plain).embed(texts)
    assert vectors.dtype == np.float32
    assert not vectors[2].any()
    usual = TextRetriever(build_text_index(kb, encoder, tmp_path / "cosine", Cutting()), encoder)
    assert vectors[:2] == pytest.approx(usual.embed(texts[:2]), abs=1e-6)
    assert np.array_equal(usual.embed(texts), encoder.encode_queries(texts))


@pytest.mark.parametrize("until", [0, 1, 2])
def test_a_build_that_was_cut_off_ends_in_the_same_bytes(kb, encoder, tmp_path, until) -> None:
    build_text_index(kb, encoder, tmp_path / "whole", Cutting(), shard_entries=3)
    with pytest.raises(KeyboardInterrupt):
        build_text_index(kb, Counting(encoder, until), tmp_path / "resumed", Cutting(), shard_entries=3)
    second = Counting(encoder)
    build_text_index(kb, second, tmp_path / "resumed", Cutting(), shard_entries=3)
    assert files(tmp_path / "resumed") == files(tmp_path / "whole")
    assert second.batches == 3 - until
    third = Counting(encoder)
    build_text_index(kb, third, tmp_path / "resumed", Cutting(), shard_entries=3)
    assert third.batches == 0


def test_rows_that_a_killed_build_left_are_not_taken_for_another_cut(kb, encoder, tmp_path, monkeypatch) -> None:
    """Kill the build between its rows and its manifest; then delete its shards, as for a new start."""
    with monkeypatch.context() as patch:
        patch.setattr("reflectune.retrieval.indexes.writing.checksums", lambda paths: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            build_text_index(kb, encoder, tmp_path / "index", Cutting())
    shutil.rmtree(tmp_path / "index/unfinished")
    other = Cutting(lead="first_sentence")  # as many passages of other texts
    build_text_index(kb, encoder, tmp_path / "index", other)
    build_text_index(kb, encoder, tmp_path / "whole", other)
    assert files(tmp_path / "index") == files(tmp_path / "whole")


def test_another_store_than_a_finished_indexs_is_refused(kb, encoder, tmp_path) -> None:
    build_text_index(kb, encoder, tmp_path / "index", Cutting(), store="exact")
    with pytest.raises(UserError, match="was built with `store: exact`, now it is `faiss`"):
        build_text_index(kb, encoder, tmp_path / "index", Cutting(), store="faiss")
    build_text_index(kb, encoder, tmp_path / "index", Cutting())


def test_a_server_that_lost_its_rows_is_refused_and_sent_them_by_building_again(kb, encoder, tmp_path) -> None:
    pytest.importorskip("milvus_lite", reason="needs reflectune[milvus]")
    store = str(tmp_path / "server.db")
    index = build_text_index(kb, encoder, tmp_path / "index", Cutting(), store=store)
    index.store.drop()
    index.store.close()
    with pytest.raises(UserError, match="doesn't exist; build the index again, which sends its rows"):
        load_text_index(tmp_path / "index", kb, encoder, Cutting())
    again = build_text_index(kb, Counting(encoder, 0), tmp_path / "index", Cutting(), store=store)
    assert again.store.sent() == len(again.store)
    again.store.close()


def test_what_is_of_something_else_is_refused(kb, encoder, tmp_path) -> None:
    build_text_index(kb, encoder, tmp_path / "index", Cutting())
    other = write_knowledge_base(tmp_path / "other", [Entry("a", "Ash", summary="A tree.")], name="trees")
    with pytest.raises(UserError, match="was built with the knowledge base `animals`"):
        load_text_index(tmp_path / "index", other, encoder, Cutting())
    with pytest.raises(UserError, match="was built with the knowledge base `animals`"):
        load_text_index(tmp_path / "index", kb, encoder, Cutting("sections"))
    plain = TextEncoder(find_checkpoint("miniature/text"), TextSettings(), torch.device("cpu"), "")
    with pytest.raises(UserError, match="was built with the encoder `miniature/text`"):
        load_text_index(tmp_path / "index", kb, plain, Cutting())
    with pytest.raises(KeyboardInterrupt):
        build_text_index(kb, Counting(encoder, 0), tmp_path / "begun", Cutting())
    with pytest.raises(UserError, match="was built with the knowledge base `animals`"):
        build_text_index(kb, encoder, tmp_path / "begun", Cutting("sections"))


@pytest.mark.parametrize("name", ["counts.npy", "text.f32"])
def test_a_changed_file_is_refused_by_its_name(kb, encoder, tmp_path, name) -> None:
    build_text_index(kb, encoder, tmp_path / "index", Cutting())
    path = tmp_path / "index" / name
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(UserError, match=f"{name} was changed or replaced"):
        load_text_index(tmp_path / "index", kb, encoder, Cutting())


MALFORMED = {"store": "annoy", "rows": "3", "cutting": {"cut": "words"}, "settings": None, "encoder": 3}
MALFORMED |= {"precision": "float8", "address": None}


@pytest.mark.parametrize(("key", "value"), [*MALFORMED.items(), ("settings", {"pooling": 3})])
def test_a_manifest_of_another_shape_is_refused(kb, encoder, tmp_path, key, value) -> None:
    build_text_index(kb, encoder, tmp_path / "index", Cutting())
    path = tmp_path / "index/manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: value}))
    with pytest.raises(UserError, match="is not a manifest of an index of passages"):
        open_text_retriever(tmp_path / "index", kb, device="cpu")


def test_an_index_of_the_other_rows_is_named_with_its_key(kb, encoder, tmp_path) -> None:
    build_text_index(kb, encoder, tmp_path / "texts", Cutting())
    with pytest.raises(UserError, match=r"texts is an index of passages, .* name it as `text_index`"):
        read_manifest(tmp_path / "texts")
    build_index(kb, load_encoder("miniature/clip"), tmp_path / "entries")
    with pytest.raises(UserError, match=r"entries is an index of entries, .* name it as `index`"):
        open_text_retriever(tmp_path / "entries", kb, device="cpu")


def test_a_full_disk_is_refused_before_anything_is_encoded(kb, encoder, tmp_path, monkeypatch) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: type(usage)(usage.total, usage.used, 100))
    counted = Counting(encoder)
    with pytest.raises(UserError, match=r"free space, or build it elsewhere"):
        build_text_index(kb, counted, tmp_path / "index", Cutting())
    assert counted.batches == 0
    flags = ["--knowledge", str(kb.folder), "--output", str(tmp_path / "index"), "--device", "cpu", "--dry_run"]
    with pytest.raises(UserError, match=r"free space, or build it elsewhere"):
        command.build_index(parse_config(command.IndexConfig, argv=["--rows", "passages", *flags]))


def test_articles_are_counted_once_for_a_build(kb, encoder, tmp_path) -> None:
    class Read(KnowledgeBase):
        times = 0

        def __iter__(self):
            self.times += 1
            return super().__iter__()

    first, second = Read(kb.folder), Read(kb.folder)
    with pytest.raises(KeyboardInterrupt):
        build_text_index(first, Counting(encoder, 0), tmp_path / "index", Cutting())
    build_text_index(second, encoder, tmp_path / "index", Cutting())
    assert (first.times, second.times) == (2, 1)


def test_a_knowledge_base_without_text_is_refused(encoder, tmp_path) -> None:
    empty = write_knowledge_base(tmp_path / "kb", [Entry("a", "Ash")], name="trees")
    with pytest.raises(UserError, match="has no passages"):
        build_text_index(empty, encoder, tmp_path / "index", Cutting())


def test_the_command_builds_what_its_manifest_opens_again(kb, tmp_path, capsys) -> None:
    output = tmp_path / "index"
    flags = ["--knowledge", str(kb.folder), "--output", str(output), "--cut", "words", "--size", "4", "--device", "cpu"]
    command.build_index.main(["--rows", "passages", *flags, "--query_prefix", "ask: ", "--dry_run", "true"])
    expected = sum(len(split_passages(entry, cut="words", size=4)) for entry in kb)
    assert f"would index {expected} passages of 8 entries with miniature/text" in capsys.readouterr().out
    assert not output.exists()
    command.build_index.main(["--rows", "passages", *flags, "--query_prefix", "ask: "])
    assert f"{expected} passages of animals" in capsys.readouterr().out
    (hits,) = open_text_retriever(output, kb, device="cpu").search(["The wolf eats"], 2)
    settings = json.loads((output / "manifest.json").read_text())["settings"]
    assert (settings["query_prefix"], settings["pooling"]) == ("ask: ", "mean")
    assert len(hits) == 2


def test_two_processes_build_the_bytes_of_one(kb, tmp_path) -> None:
    settings = TextSettings(max_length=8)  # each encoder counts the passages that it cuts
    short = [TextEncoder(find_checkpoint("miniature/text"), settings, torch.device("cpu"), "") for _ in range(3)]
    counted = [Counting(encoder) for encoder in short[1:]]
    alone = build_text_index(kb, short[0], tmp_path / "alone", Cutting(), shard_entries=2)
    two_processes(
        lambda each: build_text_index(
            kb, counted[each.index], tmp_path / "shared", Cutting(), shard_entries=2, processes=each
        )
    )
    assert all(one.batches for one in counted)
    assert alone.manifest["cut"] > 0
    assert files(tmp_path / "shared") == files(tmp_path / "alone")


@pytest.mark.parametrize("questions", [(), ("What does the owl eat?", "What does the fox eat?")], ids=["none", "given"])
def test_an_approximate_search_is_set_by_questions_or_sentences(kb, encoder, tmp_path, monkeypatch, questions) -> None:
    """Not by whole passages, which find themselves in the first cell."""
    queries = []
    calibrate = FaissStore.calibrate
    monkeypatch.setattr(FaissStore, "calibrate", lambda store, query: queries.append(query) or calibrate(store, query))
    build_text_index(kb, encoder, tmp_path / "index", Cutting(), store="faiss", questions=questions)
    (query,) = queries
    said = questions or [p.text for entry in kb for p in Cutting().passages(entry)]
    expected = encoder.encode_queries(list(said))
    np.testing.assert_array_equal(query["text"], expected)


@pytest.mark.parametrize(
    ("content", "told"), [(b" \n\n", "is empty"), (b"\xff\xfe", "is not UTF-8")], ids=["blank", "bytes"]
)
def test_a_file_without_questions_is_refused(tmp_path, content, told) -> None:
    (tmp_path / "questions.txt").write_bytes(content)
    with pytest.raises(UserError, match=told):
        passages.read_questions(str(tmp_path / "questions.txt"))


def test_a_file_of_questions_has_one_a_line(tmp_path) -> None:
    (tmp_path / "questions.txt").write_text("What does it eat?\n\n Where is it?\n", encoding="utf-8")
    assert passages.read_questions(str(tmp_path / "questions.txt")) == ["What does it eat?", "Where is it?"]

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import faiss
import numpy as np
import pytest

from reflectune.core.errors import UserError
from reflectune.core.types import Entry
from reflectune.retrieval.encoders import load_encoder
from reflectune.retrieval.index import build_index, load_index
from reflectune.retrieval.knowledge_base import KnowledgeBase, write_knowledge_base


class Counting:
    """An encoder that counts its batches of titles, and is cut off before the batch numbered `until`."""

    def __init__(self, encoder, until: int = 1000) -> None:
        self._encoder, self._until, self.batches = encoder, until, 0
        self.name, self.revision, self.fingerprint = encoder.name, encoder.revision, encoder.fingerprint
        self.dimensions = encoder.dimensions

    def encode_images(self, images):
        return self._encoder.encode_images(images)

    def encode_texts(self, texts):
        if self.batches == self._until:
            raise KeyboardInterrupt
        self.batches += 1
        return self._encoder.encode_texts(texts)


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_the_files_hold_every_vector_in_order(kb, entries, encoder, tmp_path) -> None:
    build_index(kb, encoder, tmp_path / "index", batch_size=3, shard_rows=4)
    stored = faiss.read_index(str(tmp_path / "index/title.faiss"))
    expected = encoder.encode_texts([entry.title for entry in entries])
    np.testing.assert_allclose(stored.reconstruct_n(0, 10), expected, atol=1e-6)
    rows = json.loads((tmp_path / "index/rows.json").read_text())
    assert rows["title"] == [entry.id for entry in entries]
    assert rows["image"] == [entry.id for entry in entries for _ in entry.images]
    manifest = json.loads((tmp_path / "index/manifest.json").read_text())
    assert manifest["vectors"] == {"image": 10, "title": 10}
    assert manifest["kb_fingerprint"] == kb.fingerprint
    assert (manifest["dimensions"], manifest["dtype"]) == (encoder.dimensions, "float32")
    assert set(files(tmp_path / "index")) == {"manifest.json", "rows.json", "image.faiss", "title.faiss"}


def test_loading_gives_what_building_gave(kb, encoder, tmp_path) -> None:
    built = build_index(kb, encoder, tmp_path / "index")
    loaded = load_index(tmp_path / "index", KnowledgeBase(kb.folder), encoder)
    assert loaded.entry_ids == built.entry_ids
    assert loaded.owner.tolist() == [0, 1, 1, 3, 4, 4, 6, 7, 7, 9]
    np.testing.assert_array_equal(loaded.image, built.image)
    np.testing.assert_array_equal(loaded.title, built.title)


@pytest.mark.parametrize("until", [0, 1, 2, 3, 4])
def test_a_build_that_was_cut_off_ends_in_the_same_index(kb, encoder, tmp_path, until) -> None:
    build_index(kb, encoder, tmp_path / "whole", batch_size=2, shard_rows=4)
    with pytest.raises(KeyboardInterrupt):
        build_index(kb, Counting(encoder, until), tmp_path / "resumed", batch_size=2, shard_rows=4)
    second = Counting(encoder)
    build_index(kb, second, tmp_path / "resumed", batch_size=2, shard_rows=4)
    assert files(tmp_path / "resumed") == files(tmp_path / "whole")
    assert second.batches == 5 - until // 2 * 2  # shards of two batches each; finished ones are kept


@pytest.mark.parametrize("part", ["image", "title", "owner"])
def test_a_shard_that_lacks_a_file_is_encoded_again(kb, encoder, tmp_path, part) -> None:
    build_index(kb, encoder, tmp_path / "whole", batch_size=2, shard_rows=4)
    with pytest.raises(KeyboardInterrupt):
        build_index(kb, Counting(encoder, 4), tmp_path / "resumed", batch_size=2, shard_rows=4)
    (tmp_path / f"resumed/unfinished/{part}-00001.npy").unlink()
    second = Counting(encoder)
    build_index(kb, second, tmp_path / "resumed", batch_size=2, shard_rows=4)
    assert files(tmp_path / "resumed") == files(tmp_path / "whole")
    assert second.batches == 3


def test_progress_goes_on_where_it_was_and_has_a_rate(kb, encoder, tmp_path, capsys) -> None:
    with pytest.raises(KeyboardInterrupt):
        build_index(kb, Counting(encoder, 3), tmp_path / "index", batch_size=2, shard_rows=4)
    assert capsys.readouterr().err == ""
    build_index(kb, encoder, tmp_path / "index", batch_size=2, shard_rows=4, progress=True)
    first, *_, last = capsys.readouterr().err.strip().split("\r")
    assert "4/10" in first
    assert "10/10" in last
    assert " entries/s" in last


def test_a_finished_index_is_not_built_again(kb, encoder, tmp_path) -> None:
    build_index(kb, encoder, tmp_path / "index")
    again = Counting(encoder)
    build_index(kb, again, tmp_path / "index", batch_size=1)
    assert again.batches == 0


def test_going_on_with_other_batches_is_refused(kb, encoder, tmp_path) -> None:
    with pytest.raises(KeyboardInterrupt):
        build_index(kb, Counting(encoder, 2), tmp_path / "index", batch_size=2, shard_rows=4)
    with pytest.raises(UserError, match="begun with shard_rows 4, now it is 5"):
        build_index(kb, encoder, tmp_path / "index", batch_size=2, shard_rows=5)


def test_another_knowledge_base_is_refused_by_both_names(kb, entries, encoder, tmp_path) -> None:
    build_index(kb, encoder, tmp_path / "index")
    other = write_knowledge_base(tmp_path / "hawks", entries[:5], name="hawks")
    for use in (
        lambda: load_index(tmp_path / "index", other, encoder),
        lambda: build_index(other, encoder, tmp_path / "index"),
    ):
        with pytest.raises(UserError) as caught:
            use()
        for part in ("`owls`", kb.fingerprint, "`hawks`", other.fingerprint):
            assert part in str(caught.value)


def test_another_encoder_is_refused_by_both_names(kb, encoder, other_clip_folder, tmp_path) -> None:
    build_index(kb, encoder, tmp_path / "index")
    other = load_encoder(other_clip_folder)
    with pytest.raises(UserError) as caught:
        load_index(tmp_path / "index", kb, other)
    for part in (encoder.name, encoder.fingerprint, other.name, other.fingerprint):
        assert part in str(caught.value)


def test_an_unfinished_index_of_something_else_is_refused(kb, entries, encoder, tmp_path) -> None:
    with pytest.raises(KeyboardInterrupt):
        build_index(kb, Counting(encoder, 0), tmp_path / "index")
    other = write_knowledge_base(tmp_path / "hawks", entries[:5], name="hawks")
    with pytest.raises(UserError, match=r"`owls`.*`hawks`"):
        build_index(other, encoder, tmp_path / "index")


def test_a_missing_image_names_its_entry(kb, encoder, tmp_path) -> None:
    (tmp_path / "images/3.png").unlink()
    with pytest.raises(UserError, match=r"images/3\.png.*entry e3"):
        build_index(kb, encoder, tmp_path / "index")
    assert not (tmp_path / "index/manifest.json").exists()


def test_an_entry_without_a_title_is_named(entries, encoder, tmp_path) -> None:
    blank = write_knowledge_base(tmp_path / "kb", [dataclasses.replace(entries[0], title=" ")], name="blank")
    with pytest.raises(UserError, match="e0 has no title"):
        build_index(blank, encoder, tmp_path / "index")


def test_an_empty_knowledge_base_is_refused(encoder, tmp_path) -> None:
    empty = write_knowledge_base(tmp_path / "kb", [], name="empty")
    with pytest.raises(UserError, match="no entries"):
        build_index(empty, encoder, tmp_path / "index")


def test_titles_alone_can_be_indexed(encoder, tmp_path) -> None:
    plain = write_knowledge_base(tmp_path / "kb", [Entry("a", "Ash"), Entry("b", "Birch")], name="trees")
    index = build_index(plain, encoder, tmp_path / "index")
    assert index.image.shape == (0, encoder.dimensions)
    assert index.title.shape == (2, encoder.dimensions)


@pytest.mark.parametrize("name", ["image.faiss", "title.faiss"])
def test_a_damaged_index_is_refused(kb, encoder, tmp_path, name) -> None:
    build_index(kb, encoder, tmp_path / "index")
    path = tmp_path / "index" / name
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(UserError, match="build the index again"):
        load_index(tmp_path / "index", kb, encoder)
    path.unlink()
    with pytest.raises(UserError, match="is missing"):
        load_index(tmp_path / "index", kb, encoder)

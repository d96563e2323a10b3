import dataclasses
import json
import shutil
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reflectune.core.errors import UserError
from reflectune.core.launching import Processes
from reflectune.core.types import Entry
from reflectune.formats.knowledge_base import KnowledgeBase, write_knowledge_base
from reflectune.inference.config import TextIndexSettings
from reflectune.retrieval.config import RetrieverConfig
from reflectune.retrieval.encoders.encoder import load_encoder
from reflectune.retrieval.indexes.building import build_index
from reflectune.retrieval.indexes.checksums import check_files, checksums
from reflectune.retrieval.indexes.entry_index import Index, collection_of, left_out, load_index, open_encoder
from reflectune.retrieval.retrievers.entry_retriever import EntryRetriever
from reflectune.retrieval.retrievers.queries import Query
from reflectune.retrieval.stores.ivf import FaissStore, Search

from .conftest import Counting, files, two_processes, vectors


def with_images(index: Index) -> np.ndarray:
    """The rows that have an image, which is of length 1; the mean of several isn't."""
    return np.flatnonzero(np.isclose(np.linalg.norm(vectors(index, "image"), axis=1), 1, atol=1e-6))


OWNERS = [0, 1, 1, 2, 3, 4, 4, 5, 6, 7, 7, 8, 9]
"""Entry 2, 5 and 8 have no image."""


def test_the_files_hold_every_vector_in_order(kb, entries, encoder, tmp_path) -> None:
    index = build_index(kb, encoder, tmp_path / "index", batch_size=3, shard_rows=4)
    titles = encoder.encode_texts([entry.title for entry in entries])
    kept = np.fromfile(tmp_path / "index/title.f32", "<f4").reshape(13, -1)
    np.testing.assert_allclose(kept, titles[OWNERS], atol=1e-6)
    images = np.fromfile(tmp_path / "index/image.f32", "<f4").reshape(13, -1)
    assert with_images(index).tolist() == [0, 1, 2, 4, 5, 6, 8, 9, 10, 12]
    np.testing.assert_allclose(images[[3, 7, 11]], [images[with_images(index)].mean(0)] * 3, atol=1e-6)
    manifest = json.loads((tmp_path / "index/manifest.json").read_text())
    assert (manifest["rows"], manifest["entries"], manifest["images"]) == (13, 10, 10)
    assert manifest["kb_fingerprint"] == kb.fingerprint
    assert manifest["fields"] == {"image": encoder.dimensions, "title": encoder.dimensions}
    assert (manifest["store"], manifest["precision"]) == ("exact", "float32")
    assert set(files(tmp_path / "index")) == {"manifest.json", *FILES}


def test_workers_leave_the_same_bad_images_out_in_the_same_order(kb, encoder, tmp_path) -> None:
    for number in (1, 2, 6):
        (tmp_path / f"images/{number}.png").write_text("no image")
    for name, workers in (("alone", 0), ("index", 3)):
        index = build_index(kb, encoder, tmp_path / name, batch_size=4, on_error="skip", workers=workers)
        assert left_out(index.manifest) == 3
    assert files(tmp_path / "index") == files(tmp_path / "alone")
    with pytest.raises(UserError, match=r"id e1: field `images`: image unreadable"):
        build_index(kb, encoder, tmp_path / "stopped", batch_size=4, workers=3)


def test_an_encoder_that_prepares_nothing_apart_gets_the_images(kb, encoder, tmp_path) -> None:
    build_index(kb, encoder, tmp_path / "index", batch_size=3)
    build_index(kb, Counting(encoder), tmp_path / "plain", batch_size=3, workers=2)
    assert files(tmp_path / "plain") == files(tmp_path / "index")


def test_a_file_of_milvus_lite_is_refused_in_a_launch_of_several(kb, encoder, tmp_path) -> None:
    with pytest.raises(UserError, match=r"serves one process at a time, and this launch has 2"):
        build_index(kb, encoder, tmp_path / "index", store=str(tmp_path / "a.db"), processes=Processes(0, 2))
    assert not (tmp_path / "index").exists()


def test_an_index_in_milvus_lite_is_searched_by_another_process_from_another_folder(
    kb, encoder, clip_folder, forked_python, tmp_path, monkeypatch
) -> None:
    pytest.importorskip("milvus_lite", reason="needs reflectune[milvus]")
    (built := tmp_path / "built").mkdir()
    command = [forked_python, "-m", "reflectune.retrieval.build_index", "--knowledge", str(kb.folder)]
    command += ["--encoder", clip_folder, "--output", "runs/index", "--store", "runs/a/x.db"]
    subprocess.run(command, cwd=built, check=True, capture_output=True)
    built.rename(moved := tmp_path / "moved")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")

    index = load_index(moved / "runs/index", kb, encoder)
    own = vectors(index, "image")
    assert index.store.search({"image": own}, 1).rows[with_images(index), 0].tolist() == with_images(index).tolist()
    index.store.close()
    shutil.move(moved / "runs/a", tmp_path / "away")
    with pytest.raises(
        UserError, match=r"doesn't exist: .*moved/runs/a/x\.db; move it back, or run `build_index` again"
    ):
        load_index(moved / "runs/index", kb, encoder)
    assert not list((tmp_path / "elsewhere").iterdir())
    monkeypatch.chdir(moved)
    again = build_index(kb, Counting(encoder, 0), "runs/index", store="runs/a/x.db")
    assert again.store.sent() == 13
    again.store.close()


def test_images_that_changed_are_no_rows_that_a_server_has(kb, encoder, draw_image, tmp_path, monkeypatch) -> None:
    """A knowledge base's fingerprint is of its images' paths; what the server proposes must be of their pixels."""
    pytest.importorskip("milvus_lite", reason="needs reflectune[milvus]")
    monkeypatch.setattr("reflectune.retrieval.stores.milvus.MIN_TOP", 1)
    monkeypatch.setattr("reflectune.retrieval.stores.milvus.BATCH", 4)
    store = str(tmp_path / "server.db")
    build_index(kb, encoder, tmp_path / "before", store=store).store.close()
    for number in range(10):
        draw_image(9 - number).save(tmp_path / f"images/{number}.png")
    index = build_index(kb, encoder, tmp_path / "index", store=store)
    exact = build_index(kb, encoder, tmp_path / "exact", store="exact")
    images = {"image": encoder.encode_images([draw_image(number) for number in range(10)])}
    assert index.store.search(images, 1).rows.tolist() == exact.store.search(images, 1).rows.tolist()
    index.store.close()


def test_processes_share_the_shards_that_are_left(kb, encoder, tmp_path) -> None:
    """The second of two processes encodes every second one; the first one, which waits for it, the others."""
    build_index(kb, encoder, tmp_path / "alone", batch_size=2, shard_rows=2)
    counted, settings = [Counting(encoder), Counting(encoder)], {"batch_size": 2, "shard_rows": 2}
    first, second = two_processes(
        lambda each: build_index(kb, counted[each.index], tmp_path / "shared", processes=each, **settings)
    )
    assert [one.batches for one in counted] == [3, 2]
    assert files(tmp_path / "shared") == files(tmp_path / "alone")
    assert first.manifest == second.manifest


def test_processes_go_on_with_what_an_index_of_before_has(kb, encoder, entries, tmp_path) -> None:
    short = write_knowledge_base(tmp_path / "short", entries[:6], name="owls", image_root="..", shard_size=4)
    build_index(short, encoder, tmp_path / "shared", batch_size=2, shard_rows=2)
    build_index(kb, encoder, tmp_path / "alone", batch_size=2, shard_rows=2)
    settings = {"batch_size": 2, "shard_rows": 2}
    two_processes(lambda each: build_index(kb, encoder, tmp_path / "shared", processes=each, **settings))
    assert files(tmp_path / "shared") == files(tmp_path / "alone")


def test_the_manifest_says_in_which_precision_an_index_is_searched(kb, clip_folder, entries, tmp_path) -> None:
    built = load_encoder(clip_folder, dtype="bfloat16")
    index = build_index(kb, built, tmp_path / "index")
    assert index.manifest["encoder_dtype"] == "bfloat16"
    opened = open_encoder(tmp_path / "index", device="cpu")
    assert opened.fingerprint == built.fingerprint
    with pytest.raises(UserError, match="was built with the encoder"):
        load_index(tmp_path / "index", kb, load_encoder(clip_folder))
    exact = load_encoder(clip_folder).encode_texts([entry.title for entry in entries])
    assert (built.encode_texts([entry.title for entry in entries]) * exact).sum(1).min() > 0.99


def test_loading_gives_what_building_gave(kb, encoder, tmp_path) -> None:
    built = build_index(kb, encoder, tmp_path / "index")
    loaded = load_index(tmp_path / "index", KnowledgeBase(kb.folder), encoder)
    assert list(loaded.entry_ids) == list(built.entry_ids) == list(kb.ids)
    assert [loaded.entry_ids[place] for place in (2, 3)] == ["e2", "e3"]
    assert loaded.owner.tolist() == OWNERS
    for field in ("image", "title"):
        np.testing.assert_array_equal(vectors(loaded, field), vectors(built, field))


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


def test_progress_goes_on_where_it_was_and_has_a_rate(kb, encoder, tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
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


def test_hits_name_the_knowledge_base_as_it_is_called_now(kb, entries, encoder, draw_image, tmp_path) -> None:
    build_index(kb, encoder, tmp_path / "index")
    renamed = write_knowledge_base(tmp_path / "renamed", entries, name="birds", image_root="..")
    retriever = EntryRetriever(load_index(tmp_path / "index", renamed, encoder), encoder)
    (hits,) = retriever.search([Query(draw_image(0))], 1)
    assert hits[0].kb == "birds"


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


def test_rows_that_a_killed_build_left_are_not_taken_for_another_encoders(
    kb, encoder, other_clip_folder, tmp_path, monkeypatch
) -> None:
    """Kill the build between its rows and its manifest; then delete its shards, as for a new start."""
    with monkeypatch.context() as patch:
        patch.setattr("reflectune.retrieval.indexes.writing.checksums", lambda paths: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            build_index(kb, encoder, tmp_path / "index")
    other = load_encoder(other_clip_folder)
    with pytest.raises(UserError, match=rf"the index {tmp_path}/index was built with the encoder"):
        build_index(kb, other, tmp_path / "index")
    shutil.rmtree(tmp_path / "index/unfinished")
    build_index(kb, other, tmp_path / "index")
    build_index(kb, other, tmp_path / "whole")
    assert files(tmp_path / "index") == files(tmp_path / "whole")


# Bad images of a knowledge base: `on_error: skip`.


@pytest.fixture
def damaged_kb(kb, tmp_path) -> KnowledgeBase:
    """Of ten entries: e1 has lost one of two images, e3 its only one, e6 has a truncated one, e7 a text for one."""
    (tmp_path / "images/2.png").unlink()
    (tmp_path / "images/3.png").unlink()
    whole = (tmp_path / "images/6.png").read_bytes()
    (tmp_path / "images/6.png").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "images/7.png").write_text("no image")
    return kb


def rejected(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "rejected.jsonl").read_text().splitlines()]


def test_bad_images_are_left_out_listed_and_counted(damaged_kb, encoder, tmp_path) -> None:
    index = build_index(damaged_kb, encoder, tmp_path / "index", batch_size=3, shard_rows=4, on_error="skip")
    assert list(index.entry_ids) == list(damaged_kb.ids)
    assert [index.entry_ids[index.owner[row]] for row in with_images(index)] == ["e0", "e1", "e4", "e4", "e7", "e9"]
    assert index.manifest["left_out"] == {"image missing": 2, "image unreadable": 2}
    assert left_out(index.manifest) == 4
    rows = rejected(tmp_path / "index")
    assert [(row["id"], Path(row["file"]).name, row["line"], row["kind"]) for row in rows] == [
        ("e1", "part-00000.parquet", 2, "MissingImage"),
        ("e3", "part-00000.parquet", 4, "MissingImage"),
        ("e6", "part-00001.parquet", 3, "UnreadableImage"),
        ("e7", "part-00001.parquet", 4, "UnreadableImage"),
    ]
    assert all(row["field"] == "images" and row["fix"] for row in rows)
    assert "images/6.png" in rows[2]["problem"]


def test_what_is_good_has_the_vectors_of_an_index_without_the_bad_ones(damaged_kb, entries, encoder, tmp_path) -> None:
    bad = {"images/2.png", "images/3.png", "images/6.png", "images/7.png"}
    clean = [dataclasses.replace(e, images=tuple(i for i in e.images if i not in bad)) for e in entries]
    other = write_knowledge_base(tmp_path / "clean", clean, name="owls", image_root="..", shard_size=4)
    skipped = build_index(damaged_kb, encoder, tmp_path / "index", on_error="skip")
    expected = build_index(other, encoder, tmp_path / "expected")
    np.testing.assert_allclose(vectors(skipped, "image"), vectors(expected, "image"), atol=1e-6)
    np.testing.assert_array_equal(vectors(skipped, "title"), vectors(expected, "title"))
    assert skipped.owner.tolist() == expected.owner.tolist()


@pytest.mark.parametrize("until", [1, 2, 4])
def test_a_build_with_bad_images_that_was_cut_off_ends_in_the_same_files(damaged_kb, encoder, tmp_path, until) -> None:
    settings = {"batch_size": 2, "shard_rows": 4, "on_error": "skip"}
    build_index(damaged_kb, encoder, tmp_path / "whole", **settings)
    with pytest.raises(KeyboardInterrupt):
        build_index(damaged_kb, Counting(encoder, until), tmp_path / "resumed", **settings)
    second = Counting(encoder)
    build_index(damaged_kb, second, tmp_path / "resumed", **settings)
    assert files(tmp_path / "resumed") == files(tmp_path / "whole")
    assert second.batches == 5 - until // 2 * 2  # shards of two batches each; finished ones are kept


def test_a_build_that_stopped_at_a_bad_image_goes_on_with_skip(damaged_kb, encoder, tmp_path) -> None:
    for number in (2, 3):
        (tmp_path / f"images/{number}.png").write_bytes((tmp_path / "images/4.png").read_bytes())
    settings = {"batch_size": 2, "shard_rows": 4}
    build_index(damaged_kb, encoder, tmp_path / "whole", **settings, on_error="skip")
    with pytest.raises(UserError, match=r"id e6.*images/6\.png"):
        build_index(damaged_kb, encoder, tmp_path / "resumed", **settings)
    second = Counting(encoder)
    build_index(damaged_kb, second, tmp_path / "resumed", **settings, on_error="skip")
    assert second.batches == 3  # the first shard's two are kept
    assert files(tmp_path / "resumed") == files(tmp_path / "whole")


def test_what_skip_left_out_is_not_taken_for_whole_under_stop(damaged_kb, encoder, tmp_path) -> None:
    settings = {"batch_size": 2, "shard_rows": 4}
    with pytest.raises(KeyboardInterrupt):
        build_index(damaged_kb, Counting(encoder, 2), tmp_path / "index", **settings, on_error="skip")
    with pytest.raises(UserError, match=r"id e1.*images/2\.png"):
        build_index(damaged_kb, encoder, tmp_path / "index", **settings)
    second = Counting(encoder)
    build_index(damaged_kb, second, tmp_path / "index", **settings, on_error="skip")
    assert second.batches == 3  # the first shard's two are kept
    with pytest.raises(UserError, match=r"lacks 4 images or entries, listed in rejected\.jsonl"):
        build_index(damaged_kb, encoder, tmp_path / "index", **settings)
    again = Counting(encoder)
    assert left_out(build_index(damaged_kb, again, tmp_path / "index", **settings, on_error="skip").manifest) == 4
    assert again.batches == 0


def test_images_that_were_repaired_are_indexed_under_stop(damaged_kb, encoder, tmp_path) -> None:
    settings = {"batch_size": 2, "shard_rows": 4}
    with pytest.raises(KeyboardInterrupt):
        build_index(damaged_kb, Counting(encoder, 2), tmp_path / "index", **settings, on_error="skip")
    for number in (2, 3, 6, 7):
        shutil.copy(tmp_path / "images/4.png", tmp_path / f"images/{number}.png")
    for name in ("index", "whole"):
        build_index(damaged_kb, encoder, tmp_path / name, **settings)
    assert files(tmp_path / "index") == files(tmp_path / "whole")


def test_an_entry_without_a_title_is_left_out_whole(entries, encoder, tmp_path) -> None:
    blank = [dataclasses.replace(entry, title=" ") if entry.id == "e1" else entry for entry in entries]
    kb = write_knowledge_base(tmp_path / "kb", blank, name="blank")
    with pytest.raises(UserError, match=r"part-00000\.parquet:2: id e1: field `title`: has no title"):
        build_index(kb, encoder, tmp_path / "index")
    index = build_index(kb, encoder, tmp_path / "index", on_error="skip")
    assert list(index.entry_ids) == ["e0", *(f"e{place}" for place in range(2, 10))]
    assert index.owner.tolist() == [0, 1, 2, 3, 3, 4, 5, 6, 6, 7, 8]
    assert list(index.manifest["left_out"].values()) == [1]
    nobody = write_knowledge_base(tmp_path / "nobody", [Entry("a", ""), Entry("b", " ")], name="nobody")
    with pytest.raises(UserError, match="no entry has a title"):
        build_index(nobody, encoder, tmp_path / "none", on_error="skip")


def test_an_empty_knowledge_base_is_refused(encoder, tmp_path) -> None:
    empty = write_knowledge_base(tmp_path / "kb", [], name="empty")
    with pytest.raises(UserError, match="no entries"):
        build_index(empty, encoder, tmp_path / "index")


FILES = ("owners.npy", "entries.npy", "without_image.npy", "image.f32", "title.f32")


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kept") / "index"


@pytest.fixture
def copied(kept, kb, encoder, tmp_path) -> Path:
    """Return a copy of the knowledge base's index, which is built once for all tests."""
    if not kept.exists():
        build_index(kb, encoder, kept)
    return Path(shutil.copytree(kept, tmp_path / "index"))


def change_byte(path: Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("name", "place", "verify"),
    zip(FILES, (60, -1, 60, -1, 60), (False, False, True, True, False), strict=True),
)
def test_a_changed_file_is_refused_by_its_name(copied, kb, encoder, name, place, verify) -> None:
    change_byte(copied / name, place)
    with pytest.raises(UserError, match=rf"index/{name} was changed or replaced .* build the index again"):
        load_index(copied, kb, encoder, verify=verify)


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_was_cut_or_is_gone_is_refused_by_its_name(copied, kb, encoder, name) -> None:
    path = copied / name
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(UserError, match=rf"{name} has \d+ bytes, its manifest says \d+: it was cut or replaced"):
        load_index(copied, kb, encoder)
    path.unlink()
    with pytest.raises(UserError, match=rf"is missing: .*{name}"):
        load_index(copied, kb, encoder)


def test_of_a_large_file_chunks_are_read_and_with_verify_all(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("reflectune.retrieval.indexes.checksums.WHOLE", 1 << 20)
    path = tmp_path / "large.faiss"
    path.write_bytes(np.random.default_rng(0).bytes(16 << 20))
    recorded = checksums([path])
    for verify in (False, True):
        check_files(tmp_path, recorded, [path.name], verify=verify)
    distance = ((16 << 20) - (1 << 16)) // 63
    change_byte(path, distance - 100)  # between two chunks
    check_files(tmp_path, recorded, [path.name], verify=False)
    with pytest.raises(UserError, match=r"large\.faiss was changed"):
        check_files(tmp_path, recorded, [path.name], verify=True)
    for place in (0, distance + 100, -1):
        path.write_bytes(np.random.default_rng(0).bytes(16 << 20))
        change_byte(path, place)
        with pytest.raises(UserError, match=r"large\.faiss was changed"):
            check_files(tmp_path, recorded, [path.name], verify=False)


def test_an_approximate_store_is_calibrated_with_images_alone(kb, encoder, tmp_path, monkeypatch) -> None:
    """The mean image in place of a missing image is not a query. A loaded index has the calibrated parameters."""
    queries = []
    calibrate = FaissStore.calibrate
    monkeypatch.setattr(FaissStore, "calibrate", lambda store, query: queries.append(query) or calibrate(store, query))
    build_index(kb, encoder, tmp_path / "index", store="faiss")
    (query,) = queries
    weights = np.linspace(0, 1, 10)
    np.testing.assert_allclose(np.linalg.norm(query["image"], axis=1), 1 - weights, atol=2e-3)
    index = load_index(tmp_path / "index", kb, encoder)
    assert isinstance(index.store, FaissStore)
    assert index.store.settings == Search(index.manifest["search"]["cells"], 200) != Search()


def grown(entries, tmp_path, count: int, name: str) -> KnowledgeBase:
    """The knowledge base of the first entries, in shards of another size."""
    return write_knowledge_base(tmp_path / name, entries[:count], name="owls", image_root="..", shard_size=3)


@pytest.mark.parametrize(
    ("before", "encoded", "store"),
    [(4, 3, "exact"), (7, 3, "exact"), (8, 1, "exact"), (9, 1, "exact"), (3, 5, "exact"), (7, 3, "faiss")],
)
def test_entries_that_are_added_later_are_encoded_alone(kb, entries, encoder, tmp_path, before, encoded, store) -> None:
    """Shards of four entries in two batches: those of full shards are not encoded again, and the bytes are the same."""
    settings = {"batch_size": 2, "shard_rows": 4, "store": store}
    build_index(kb, encoder, tmp_path / "whole", **settings)
    build_index(grown(entries, tmp_path, before, "first"), encoder, tmp_path / "index", **settings)
    counting = Counting(encoder)
    build_index(kb, counting, tmp_path / "index", **{**settings, "store": "auto"})
    assert counting.batches == encoded
    assert files(tmp_path / "index") == files(tmp_path / "whole")


def test_another_store_is_refused_of_a_finished_index_and_of_one_that_grows(kb, entries, encoder, tmp_path) -> None:
    build_index(grown(entries, tmp_path, 8, "first"), encoder, tmp_path / "index", shard_rows=4)
    before = files(tmp_path / "index")
    for knowledge in (KnowledgeBase(tmp_path / "first"), kb):
        with pytest.raises(UserError, match="was built with `store: exact`, now it is `faiss`"):
            build_index(knowledge, encoder, tmp_path / "index", shard_rows=4, store="faiss")
    assert files(tmp_path / "index") == before


def test_what_was_left_out_before_stays_listed(damaged_kb, entries, encoder, tmp_path) -> None:
    settings = {"batch_size": 2, "shard_rows": 4, "on_error": "skip"}
    build_index(damaged_kb, encoder, tmp_path / "whole", **settings)
    build_index(grown(list(damaged_kb), tmp_path, 8, "first"), encoder, tmp_path / "index", **settings)
    index = build_index(damaged_kb, encoder, tmp_path / "index", **settings)
    assert left_out(index.manifest) == 4
    assert [row["id"] for row in rejected(tmp_path / "index")] == [row["id"] for row in rejected(tmp_path / "whole")]
    assert list(index.owner) == list(load_index(tmp_path / "whole", damaged_kb, encoder).owner)


def test_an_index_that_lacks_images_stays_as_it_is_under_stop(damaged_kb, encoder, tmp_path) -> None:
    first = grown(list(damaged_kb), tmp_path, 8, "first")
    build_index(first, encoder, tmp_path / "index", shard_rows=4, on_error="skip")
    before = files(tmp_path / "index")
    with pytest.raises(UserError, match="lacks 4 images or entries"):
        build_index(damaged_kb, encoder, tmp_path / "index", shard_rows=4)
    assert files(tmp_path / "index") == before


def test_an_index_that_grows_drops_its_old_collection(kb, entries, encoder, tmp_path) -> None:
    pytest.importorskip("milvus_lite", reason="needs reflectune[milvus]")
    from pymilvus import MilvusClient

    store = str(tmp_path / "server.db")
    for knowledge in (grown(entries, tmp_path, 8, "first"), kb):
        index = build_index(knowledge, encoder, tmp_path / "index", store=store, shard_rows=4)
        index.store.close()
    with closing(MilvusClient(store)) as client:
        assert client.list_collections() == [collection_of(index.manifest)]


def test_growing_that_was_cut_off_goes_on(kb, entries, encoder, tmp_path) -> None:
    settings = {"batch_size": 2, "shard_rows": 4}
    build_index(kb, encoder, tmp_path / "whole", **settings)
    build_index(grown(entries, tmp_path, 5, "first"), encoder, tmp_path / "index", **settings)
    with pytest.raises(KeyboardInterrupt):
        build_index(kb, Counting(encoder, 1), tmp_path / "index", **settings)
    second = Counting(encoder)
    build_index(kb, second, tmp_path / "index", **settings)
    assert second.batches == 3
    assert files(tmp_path / "index") == files(tmp_path / "whole")


def test_a_knowledge_base_that_begins_otherwise_is_another_one(kb, entries, encoder, tmp_path) -> None:
    changed = [dataclasses.replace(entries[0], title="Another owl"), *entries[1:6]]
    build_index(grown(changed, tmp_path, 6, "first"), encoder, tmp_path / "index")
    before = files(tmp_path / "index")
    with pytest.raises(UserError, match="use that one, or build the index in another folder"):
        build_index(kb, encoder, tmp_path / "index")
    assert files(tmp_path / "index") == before


def test_an_encoder_that_was_moved_is_a_problem_of_the_config(copied: Path, tmp_path: Path) -> None:
    configs = {"index": RetrieverConfig(index=str(copied)), "text_index": TextIndexSettings(text_index=str(copied))}
    assert [config.problems() for config in configs.values()] == [[], []]
    write_manifest(copied, {"encoder": str(tmp_path / "gone")})
    for key, config in configs.items():
        (problem,) = config.problems()
        assert problem.startswith(f"`{key}`: {copied} was built with an encoder that is missing: ")
        assert str(tmp_path / "gone") in problem


def write_manifest(folder: Path, change: dict[str, Any] | None) -> None:
    """Change keys of an index's manifest; None replaces it by a list."""
    path = folder / "manifest.json"
    path.write_text("[]" if change is None else json.dumps(json.loads(path.read_text()) | change))


@pytest.mark.parametrize(
    "change",
    [
        None,
        {"fields": None},
        {"fields": {"image": ["x"], "title": 3}},
        {"fields": {"image": 16}},
        {"fields": {"image": 0, "title": 16}},
        {"rows": None},
        {"left_out": {"no title": []}},
        {"store": "annoy"},
        {"precision": "float8"},
        {"address": 3},
        {"kb": None},
        {"encoder": None},
    ],
    ids=str,
)
def test_a_manifest_of_something_else_is_refused(copied, kb, encoder, change) -> None:
    write_manifest(copied, change)
    with pytest.raises(UserError, match=r"manifest\.json is not an index's manifest"):
        load_index(copied, kb, encoder)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("owners.npy", np.full(13, 10)),
        ("entries.npy", np.full(10, 10)),
        ("owners.npy", np.full(13, -1)),
        ("entries.npy", np.zeros(10)),
        ("owners.npy", np.zeros((13, 1), int)),
        ("entries.npy", np.zeros(5, int)),
    ],
    ids=["owners beyond", "entries beyond", "negative", "real", "matrix", "few"],
)
def test_positions_that_are_none_are_refused(copied, kb, encoder, name, content) -> None:
    np.save(copied / name, content)
    recorded = json.loads((copied / "manifest.json").read_text())["checksums"]
    write_manifest(copied, {"checksums": recorded | checksums([copied / name])})
    with pytest.raises(UserError, match="build the index again"):
        load_index(copied, kb, encoder)


@pytest.mark.parametrize("checked", [{}, {"owners.npy": 3}, [1], None])
def test_checksums_of_the_wrong_shape_are_refused(copied, kb, encoder, checked) -> None:
    write_manifest(copied, {"checksums": checked})
    with pytest.raises(UserError, match="`checksums` are damaged"):
        load_index(copied, kb, encoder)

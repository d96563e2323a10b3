"""One suite for all stores: what is added is found, and each finds what exact search does.

A Milvus server is tested as Milvus Lite is, if REFLECTUNE_TEST_MILVUS says where one is; its collections are dropped.
"""

import os
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reflectune.core.errors import UserError
from reflectune.retrieval.stores.base import VectorStore
from reflectune.retrieval.stores.exact import ExactStore
from reflectune.retrieval.stores.ivf import FaissStore, Search, cells_for, overlap
from reflectune.retrieval.stores.milvus import MilvusStore, index_kind
from reflectune.retrieval.stores.names import store_name
from reflectune.retrieval.stores.opening import Choice, choose, open_store

FIELDS = {"image": 12, "title": 8}
KINDS = ("exact", "exact16", "faiss", "milvus", "server")
SERVER = os.environ.get("REFLECTUNE_TEST_MILVUS", "")

Make = Callable[..., VectorStore]
Store = TypeVar("Store", bound=VectorStore)


def unit(rows: np.ndarray) -> np.ndarray:
    return (rows / np.linalg.norm(rows, axis=-1, keepdims=True)).astype(np.float32)


def drawn(count: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Vectors around a few centres, as embeddings lie."""
    rng = np.random.default_rng(seed)
    centres = np.random.default_rng(99)
    return {
        name: unit(centres.normal(size=(9, size))[rng.integers(9, size=count)] + rng.normal(size=(count, size)) / 2)
        for name, size in FIELDS.items()
    }


def take(vectors: Mapping[str, np.ndarray], rows: Any) -> dict[str, np.ndarray]:
    return {name: array[rows] for name, array in vectors.items()}


@pytest.fixture(params=KINDS)
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Make]:
    """Makes stores of one kind, of a folder each; the same name opens the same one again."""
    if request.param == "milvus":
        pytest.importorskip("milvus_lite", reason="needs reflectune[milvus]")
    if request.param == "server" and not SERVER:
        pytest.skip("REFLECTUNE_TEST_MILVUS names no server")
    servers: dict[str, MilvusStore] = {}

    def begin(name: str = "store", fields: Mapping[str, int] = FIELDS) -> VectorStore:
        folder = tmp_path / name
        if request.param in ("milvus", "server"):
            if name in servers:
                servers.pop(name).close()
            address = SERVER if request.param == "server" else str(tmp_path / f"{name}.db")
            servers[name] = MilvusStore(address, f"test_{name}", ExactStore(folder, fields), cells=8, probes=8)
            return servers[name]
        rows = ExactStore(folder, fields, precision="float16" if request.param == "exact16" else "float32")
        return FaissStore(folder, rows, cells=8) if request.param == "faiss" else rows

    yield begin
    for server in servers.values():
        if request.param == "server":
            server.drop()
        server.close()


exact_and_milvus = pytest.mark.parametrize("make", ["exact", "milvus"], indirect=True)


def filled(store: Store, vectors: Mapping[str, np.ndarray]) -> Store:
    store.add(vectors)
    store.finish()
    return store


def truth(vectors: Mapping[str, np.ndarray], query: Mapping[str, np.ndarray], top: int) -> np.ndarray:
    """The best rows, written out."""
    scores = sum(query[name].astype(np.float64) @ vectors[name].T.astype(np.float64) for name in query)
    return np.argsort(-scores, axis=1, kind="stable")[:, :top]


def weighted(query: Mapping[str, np.ndarray], weight: float) -> dict[str, np.ndarray]:
    return {"image": query["image"] * np.float32(1 - weight), "title": query["title"] * np.float32(weight)}


@pytest.mark.parametrize("weight", [0.0, 0.3, 1.0])
def test_any_weights_find_what_exact_search_does(make: Make, weight: float) -> None:
    vectors, query = drawn(600), weighted(drawn(7, seed=1), weight)
    store = filled(make(), vectors)
    if isinstance(store, FaissStore):
        store.calibrate(query, min_recall=1.0)
    found = store.search(query, 10)
    kept = store.get(np.arange(600))
    assert overlap(found.rows, truth(kept, query, 10)) == 1.0
    scores = sum((query[name][:, None].astype(np.float64) * kept[name][found.rows]).sum(-1) for name in query)
    np.testing.assert_allclose(found.scores, scores, atol=1e-12)
    assert (np.diff(found.scores, axis=1) <= 0).all()


def test_one_field_can_be_asked_about_alone(make: Make) -> None:
    vectors, query = drawn(300), drawn(5, seed=1)
    store = filled(make(), vectors)
    both = {"image": query["image"], "title": np.zeros_like(query["title"])}
    assert store.search({"image": query["image"]}, 5).rows.tolist() == store.search(both, 5).rows.tolist()


def test_what_was_added_is_read_back_in_order_and_after_opening_again(make: Make) -> None:
    vectors = drawn(50)
    store = make()
    for first in range(0, 50, 20):
        store.add(take(vectors, slice(first, first + 20)))
    store.finish()
    query = take(vectors, [3, 40])
    found = store.search(query, 4).rows.tolist()
    again = make()
    assert len(store) == len(again) == 50
    for name, array in again.get(np.array([49, 0, 7, 7])).items():
        np.testing.assert_allclose(array, vectors[name][[49, 0, 7, 7]], atol=1e-3)
    assert again.search(query, 4).rows.tolist() == found
    assert again.search(query, 1).rows.tolist() == [[3], [40]]


def test_equal_rows_come_in_their_order_and_more_than_there_are_end_in_none(make: Make) -> None:
    one = drawn(1)
    store = filled(make(), take(one, np.zeros(6, dtype=int)))
    found = store.search(one, 9)
    assert found.rows.tolist() == [[0, 1, 2, 3, 4, 5, -1, -1, -1]]
    assert np.isneginf(found.scores[0, 6:]).all()
    assert np.isfinite(found.scores[0, :6]).all()
    assert store.search(one, 4).rows.tolist() == [[0, 1, 2, 3]]


def test_rows_may_be_added_after_it_was_finished(make: Make) -> None:
    vectors = drawn(400)
    store = filled(make(), take(vectors, slice(0, 250)))
    store.add(take(vectors, slice(250, 400)))
    store.finish()
    store.finish()
    query = take(vectors, [0, 249, 250, 399])
    assert len(store) == 400
    assert store.search(query, 1).rows.ravel().tolist() == [0, 249, 250, 399]
    assert len(set(store.search(query, 400).rows[0].tolist())) == len(store.search(query, 400).rows[0])


def test_an_empty_store_finds_nothing(make: Make) -> None:
    store = make()
    store.finish()
    if isinstance(store, MilvusStore):
        assert store.sent() == 0
    assert len(store) == 0
    assert store.search(drawn(2), 3).rows.tolist() == [[-1] * 3] * 2


NO_VECTORS: list[tuple[dict[str, Any], str]] = [
    ({"image": np.full((2, 12), np.nan)}, "aren.t finite"),
    ({"image": np.zeros((2, 11))}, "shape"),
    ({"image": np.zeros((3, 12))}, "shape"),
    ({"image": np.zeros(12)}, "shape"),
    ({"sound": np.zeros((2, 12))}, "the store has"),
]


def test_what_is_no_vector_is_refused_and_changes_nothing(make: Make) -> None:
    store = filled(make(), drawn(4))
    for change, said in NO_VECTORS:
        with pytest.raises(ValueError, match=said):
            store.add({**drawn(2), **change})
        with pytest.raises(ValueError, match=said):
            store.search({**drawn(2), **change}, 3)
        assert len(store) == 4
        assert store.search(drawn(1), 4).rows[0].tolist().count(-1) == 0


@exact_and_milvus
def test_a_search_for_nothing_is_refused(make: Make) -> None:
    store = filled(make(), drawn(4))
    with pytest.raises(ValueError, match="at least 1"):
        store.search(drawn(1), 0)
    with pytest.raises(ValueError, match="the store has"):
        store.search({}, 3)
    with pytest.raises(ValueError, match="the store has"):
        store.add({"image": drawn(1)["image"]})


@exact_and_milvus
def test_queries_of_zeros_have_rows_of_score_0(make: Make) -> None:
    store = filled(make(), drawn(30))
    found = store.search(take(drawn(1), slice(0, 1)) | {"image": np.zeros((1, 12)), "title": np.zeros((1, 8))}, 5)
    assert found.scores.tolist() == [[0.0] * 5]
    assert len(set(found.rows[0].tolist())) == 5


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_blocks_and_batches_change_nothing(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Exact search: whatever is added together and searched for together, to the last digit, with ties in order."""
    count = data.draw(st.integers(1, 40))
    levels = np.array([-1.0, -0.5, 0.0, 0.5, 1.0], dtype=np.float32)
    rng = np.random.default_rng(data.draw(st.integers(0, 2**16)))
    vectors = {name: levels[rng.integers(5, size=(count, size))] for name, size in FIELDS.items()}
    query = {name: levels[rng.integers(5, size=(3, size))] for name, size in FIELDS.items()}
    top = data.draw(st.integers(1, 45))
    store = ExactStore(tmp_path_factory.mktemp("store"), FIELDS)
    cuts = sorted(data.draw(st.lists(st.integers(0, count), max_size=3)))
    for first, last in zip([0, *cuts], [*cuts, count], strict=True):
        store.add(take(vectors, slice(first, last)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("reflectune.retrieval.stores.exact.BLOCK", data.draw(st.integers(1, 2000)))
        found = store.search(query, top)
        alone = [store.search(take(query, slice(place, place + 1)), top) for place in range(3)]
    assert found.rows[:, : min(top, count)].tolist() == truth(vectors, query, top).tolist()
    assert (found.rows[:, count:] == -1).all()
    assert [each.scores.tolist()[0] for each in alone] == found.scores.tolist()


def test_more_equal_rows_than_are_kept_come_in_their_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In float32 the scores of equal rows differ by their place in a block."""
    monkeypatch.setattr("reflectune.retrieval.stores.exact.BLOCK", 1 << 15)
    rng = np.random.default_rng(0)
    store = ExactStore(tmp_path, {"image": 64})
    store.add({"image": np.tile(unit(rng.normal(size=(1, 64))), (301, 1))})
    queries = unit(rng.normal(size=(16, 64)))
    found = store.search({"image": queries}, 5)
    assert found.rows.tolist() == [[0, 1, 2, 3, 4]] * 16
    assert store.search({"image": queries[:1]}, 5).scores.tolist() == found.scores[:1].tolist()


def test_an_addition_that_was_cut_off_is_dropped_by_repair_alone(tmp_path: Path) -> None:
    store = ExactStore(tmp_path / "rows", FIELDS)
    store.add(drawn(5))
    with store.path("image").open("ab") as file:
        file.write(b"\0" * (12 * 4 * 2 + 3))
    with pytest.raises(UserError, match=r"image\.f32 has 339 bytes, expected 240 for 5 rows of 48 bytes: it was cut"):
        ExactStore(tmp_path / "rows", FIELDS)
    repaired = ExactStore(tmp_path / "rows", FIELDS, repair=True)
    assert len(repaired) == 5
    np.testing.assert_array_equal(repaired.get(np.arange(5))["image"], drawn(5)["image"])
    assert store.path("image").stat().st_size == 240


def test_a_faiss_store_that_is_killed_while_it_fills_ends_in_the_same_bytes(tmp_path: Path) -> None:
    """`kill -9` after the cells are found and before the rows are in."""
    program = """
import os, signal, sys
from pathlib import Path
from reflectune.retrieval.stores.exact import ExactStore
from reflectune.retrieval.stores.ivf import FaissStore
folder = Path(sys.argv[1])
FaissStore(folder, ExactStore(folder, {"image": 12, "title": 8}), cells=8,
           progress=lambda rows: os.kill(os.getpid(), signal.SIGKILL)).finish()
"""
    made = []
    for name in ("whole", "killed"):
        folder = tmp_path / name
        ExactStore(folder, FIELDS).add(drawn(500))
        if name == "killed":
            ended = subprocess.run([sys.executable, "-c", program, str(folder)], check=False)
            assert ended.returncode == -9
            assert (folder / "centres.faiss").is_file()
            assert not (folder / "codes.faiss").exists()
        FaissStore(folder, ExactStore(folder, FIELDS), cells=8).finish()
        made.append({path.name: path.read_bytes() for path in folder.iterdir()})
    assert made[0] == made[1]
    assert set(made[0]) == {"image.f32", "title.f32", "codes.faiss"}


def test_calibration_takes_the_fewest_cells_that_suffice(tmp_path: Path) -> None:
    rows = ExactStore(tmp_path, FIELDS)
    store = filled(FaissStore(tmp_path, rows, cells=64), drawn(4000))
    query = drawn(50, seed=1)
    record = store.calibrate(query, top=10, min_recall=0.99)
    expected = rows.search(query, 10).rows
    fewer = Search(max(record["cells"] // 2, 1), record["candidates"])
    assert record["recall"] == overlap(store.search(query, 10).rows, expected) >= 0.99
    assert record["cells"] == 1 or overlap(store.search_with(fewer, query, 10).rows, expected) < 0.99
    opened = FaissStore(tmp_path, ExactStore(tmp_path, FIELDS), search=record)
    assert opened.settings == store.settings == Search(record["cells"], 200)


@pytest.mark.parametrize("content", [b"", b"IxFI" + b"\0" * 60, b"{}"])
def test_codes_that_are_damaged_are_refused(tmp_path: Path, content: bytes) -> None:
    filled(FaissStore(tmp_path, ExactStore(tmp_path, FIELDS), cells=4), drawn(100))
    (tmp_path / "codes.faiss").write_bytes(content)
    with pytest.raises(UserError, match=r"codes\.faiss .*build the index again"):
        FaissStore(tmp_path, ExactStore(tmp_path, FIELDS))


def test_codes_of_more_rows_or_other_dimensions_are_refused(tmp_path: Path) -> None:
    for name, count in (("few", 50), ("many", 60)):
        filled(FaissStore(tmp_path / name, ExactStore(tmp_path / name, FIELDS), cells=4), drawn(count))
    (tmp_path / "few/codes.faiss").write_bytes((tmp_path / "many/codes.faiss").read_bytes())
    with pytest.raises(UserError, match="has 60 rows, the vector files have 50"):
        FaissStore(tmp_path / "few", ExactStore(tmp_path / "few", FIELDS))
    narrow = ExactStore(tmp_path / "narrow", {"image": 4})
    narrow.add({"image": np.ones((60, 4))})
    (tmp_path / "narrow/codes.faiss").write_bytes((tmp_path / "many/codes.faiss").read_bytes())
    with pytest.raises(UserError, match="an index of 20 dimensions, not 4"):
        FaissStore(tmp_path / "narrow", narrow)


# Milvus's side.


def test_a_server_that_is_away_is_one_line(tmp_path: Path) -> None:
    pytest.importorskip("pymilvus", reason="needs reflectune[milvus]")
    with pytest.raises(UserError, match=r"the Milvus server at http://127\.0\.0\.1:9 failed: .*`--store faiss`"):
        MilvusStore("http://127.0.0.1:9", "vectors", ExactStore(tmp_path, FIELDS))
    (tmp_path / "text.db").write_text("text")
    with pytest.raises(UserError, match=r"Milvus Lite's file .*text\.db failed: .*`--store faiss`"):
        MilvusStore(str(tmp_path / "text.db"), "vectors", ExactStore(tmp_path, FIELDS))


def test_a_collection_that_lacks_rows_or_is_of_something_else_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("milvus_lite", reason="needs reflectune[milvus]")
    address = str(tmp_path / "server.db")
    store = MilvusStore(address, "vectors", ExactStore(tmp_path / "rows", FIELDS), cells=4)
    with pytest.raises(UserError, match=r"the collection vectors on .* doesn't exist; build the index again"):
        store.check()
    store.add(drawn(30))
    store.finish()
    store.check()
    store.add(drawn(5))
    with pytest.raises(UserError, match="has 30 rows, the index 35; build the index again to send the rest"):
        store.check()
    store.finish()
    store.check()
    store.close()
    other = MilvusStore(address, "vectors", ExactStore(tmp_path / "other", {"image": 4}))
    with pytest.raises(UserError, match="was not made from this index"):
        other.check()
    other.close()


def test_rows_that_were_sent_before_are_not_doubled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that dies between two requests, and one whose last request was half done."""
    pytest.importorskip("milvus_lite", reason="needs reflectune[milvus]")
    monkeypatch.setattr("reflectune.retrieval.stores.milvus.BATCH", 100)
    told: list[int] = []

    def stop_after_two(rows: int) -> None:
        told.append(rows)
        if len(told) == 2:
            raise KeyboardInterrupt

    address, rows = str(tmp_path / "server.db"), ExactStore(tmp_path / "rows", FIELDS)
    rows.add(drawn(450))
    first = MilvusStore(address, "vectors", rows, cells=4, progress=stop_after_two)
    with pytest.raises(KeyboardInterrupt):
        first.finish()
    first.close()
    second = MilvusStore(address, "vectors", rows, cells=4, progress=told.append)
    second.finish()
    assert told == [100, 100, 100, 100, 50]
    assert second.sent() == 450
    second.close()


def test_rows_that_a_server_lost_from_the_middle_are_sent_again(tmp_path: Path, monkeypatch) -> None:
    pytest.importorskip("milvus_lite", reason="needs reflectune[milvus]")
    from pymilvus import MilvusClient

    monkeypatch.setattr("reflectune.retrieval.stores.milvus.BATCH", 100)
    address, rows = str(tmp_path / "server.db"), ExactStore(tmp_path / "rows", FIELDS)
    rows.add(drawn(450))
    with closing(MilvusStore(address, "vectors", rows, cells=4)) as store:
        store.finish()
    with closing(MilvusClient(address)) as client:
        client.delete("vectors", ids=[*range(120, 130)])
    with closing(MilvusStore(address, "vectors", rows, cells=4)) as store:
        assert store.sent() == 440
        store.finish()
        assert store.sent() == 450


@pytest.mark.parametrize(
    ("kind", "versions"),
    [
        ("IVF_RABITQ", ("v2.6.3", "2.6", "3.0.1-dev")),
        ("IVF_SQ8", ("v2.5.14", "v2.3.5-lite")),
        ("FLAT", ("milvus_lite-3.2.2", "")),
    ],
)
def test_a_server_gets_the_index_that_its_version_has(kind: str, versions: tuple[str, ...]) -> None:
    assert {index_kind(version) for version in versions} == {kind}


# Which store.


def test_auto_chooses_by_size_and_says_why(tmp_path: Path) -> None:
    small, large = (choose("auto", rows, {"image": 768, "title": 768}) for rows in (10_000, 2_000_000))
    assert (small.kind, small.precision) == ("exact", "float32")
    assert (large.kind, large.precision) == ("faiss", "float16")
    assert large.reason == "2,000,000 rows of 1,536 numbers are 11 GiB in float32"
    assert choose("faiss", 10, FIELDS).kind == "faiss"
    assert choose("exact", 10**9, FIELDS).kind == "exact"
    server = Choice("milvus", "float16", "a server searches it", "http://host:19530")
    assert choose("http://host:19530", 10, FIELDS) == server
    for choice, kind in ((small, ExactStore), (large, FaissStore)):
        assert isinstance(open_store(choice, tmp_path / choice.kind, FIELDS, collection="c"), kind)


def test_what_a_store_takes_on_the_disk_is_what_was_computed(tmp_path: Path) -> None:
    for name in ("exact", "faiss"):
        choice = choose(name, 5000, FIELDS)
        filled(open_store(choice, tmp_path / name, FIELDS, collection="c"), drawn(5000))
        taken = sum(path.stat().st_size for path in (tmp_path / name).iterdir())
        assert taken == pytest.approx(choice.disk(5000, FIELDS), rel=0.1)


@pytest.mark.parametrize("name", ["", "annoy", "host:19530", "http://me:secret@host:19530", "ftp://me:secret@h/x.db"])
def test_an_invalid_store_name_is_reported_without_its_password(name: str) -> None:
    said = store_name(name)
    assert "must be auto, exact, faiss, or a Milvus server's address" in said
    assert "secret" not in said
    assert ("$MILVUS_TOKEN" in said) == ("@" in name)


@pytest.mark.parametrize(("rows", "cells"), [(1, 4), (600, 128), (2_000_000, 4096), (21_000_000, 16384)])
def test_cells_are_about_four_times_the_root(rows: int, cells: int) -> None:
    assert cells_for(rows) == cells


def test_many_queries_at_once_are_compared_in_bounded_memory(tmp_path: Path) -> None:
    """Scores of 256 queries and 200,000 rows of 4 numbers would be 200 MB, and their rows' numbers 400."""
    rng = np.random.default_rng(0)
    store = ExactStore(tmp_path, {"text": 4})
    store.add({"text": rng.standard_normal((200_000, 4), dtype=np.float32)})
    queries = rng.standard_normal((256, 4), dtype=np.float32)
    tracemalloc.start()
    found = store.search({"text": queries}, 3)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 160 << 20
    for place in (0, 100, 255):
        alone = store.search({"text": queries[place : place + 1]}, 3)
        assert alone.rows.tolist() == found.rows[place : place + 1].tolist()

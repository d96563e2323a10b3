"""Images that are test images too: found however they are scaled, and left out of an index that says so."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageFilter

from reflectune.core.errors import UserError
from reflectune.core.types import Entry, Question
from reflectune.formats.dataset import Dataset, write_questions
from reflectune.formats.knowledge_base import KnowledgeBase, write_knowledge_base
from reflectune.retrieval.indexes.building import build_index
from reflectune.retrieval.indexes.entry_index import collection_of
from reflectune.retrieval.indexes.near_duplicates import (
    HASHES,
    LIST,
    NearDuplicate,
    Omission,
    as_lines,
    find_near_duplicates,
    list_near_duplicates,
    read_omission,
)
from reflectune.retrieval.retrievers.entry_retriever import EntryRetriever
from reflectune.retrieval.retrievers.queries import Query

from .conftest import files


def photo(seed: int) -> Image.Image:
    """A smooth image that differs from every other seed's."""
    noise = np.random.default_rng(seed).integers(0, 256, (12, 12, 3), dtype=np.uint8)
    return Image.fromarray(noise).resize((160, 120), Image.Resampling.BICUBIC).filter(ImageFilter.GaussianBlur(2))


@pytest.fixture
def photos(tmp_path: Path) -> KnowledgeBase:
    """Entries a (images 0, 1), b (2), c (none), d (a damaged file); test images like 1 and 2, and another."""
    pytest.importorskip("imagehash", reason="an extra: pip install 'reflectune[dedup]'")
    for number in range(3):
        photo(number).save(tmp_path / f"{number}.png")
    (tmp_path / "bad.png").write_text("no image")
    photo(1).resize((320, 240)).save(tmp_path / "test1.jpg", quality=60)
    photo(2).save(tmp_path / "test2.png")
    photo(9).save(tmp_path / "test9.png")
    images = {"a": ("0.png", "1.png"), "b": ("2.png",), "c": (), "d": ("bad.png",)}
    entries = [Entry(name, f"Title {name}", images=paths) for name, paths in images.items()]
    return write_knowledge_base(tmp_path / "knowledge", entries, name="photos")


TESTED = ["test1.jpg", "test2.png", "test9.png"]


def test_near_duplicates_are_listed_with_the_nearest_test_image(photos: KnowledgeBase, tmp_path: Path) -> None:
    found, counts = find_near_duplicates(photos, TESTED, tmp_path, tmp_path / "out", distance=6)
    pairs = [(each.entry, each.image, each.of) for each in found]
    assert pairs == [("a", "1.png", "test1.jpg"), ("b", "2.png", "test2.png")]
    assert found[1].distance == 0
    assert all(each.distance <= 6 for each in found)
    assert counts == {"images": 4, "unreadable": 1, "test_images": 3}


@pytest.mark.parametrize("name", ["manifest.json", "unfinished"])
def test_another_list_does_not_replace_that_of_an_index(photos: KnowledgeBase, tmp_path: Path, name: str) -> None:
    asked = [Question(name, name, "What?", answers=("a",), split="test") for name in TESTED]
    write_questions(tmp_path / "asked", "test", asked)
    record = {"name": "asked", "fingerprint": "f" * 16, "counts": {}, "image_root": ".."}
    (tmp_path / "asked/dataset.json").write_text(json.dumps(record))
    dataset, folder = Dataset(tmp_path / "asked"), tmp_path / "out"
    for distance in (0, 6):  # without an index another list does
        list_near_duplicates(photos, dataset, ["test"], folder, distance)
    (folder / name).touch()
    list_near_duplicates(photos, dataset, ["test"], folder, 6)
    before = (folder / LIST).read_bytes()
    with pytest.raises(UserError, match=f"{LIST} lists other near-duplicates than are found now"):
        list_near_duplicates(photos, dataset, ["test"], folder, 0)
    assert (folder / LIST).read_bytes() == before


def test_a_run_that_was_cut_off_goes_on_and_hashes_are_kept(photos: KnowledgeBase, tmp_path: Path) -> None:
    straight, _ = find_near_duplicates(photos, TESTED, tmp_path, tmp_path / "out", distance=6)
    (log,) = (tmp_path / "out").glob(f"{HASHES}.*.jsonl")
    whole = log.read_bytes()
    log.write_bytes(whole[: len(whole) - 40])  # killed while a row was written
    assert find_near_duplicates(photos, TESTED, tmp_path, tmp_path / "out", distance=6)[0] == straight
    assert log.read_bytes() == whole
    for number in range(3):
        (tmp_path / f"{number}.png").unlink()  # not read again, whatever is compared with it
    again, _ = find_near_duplicates(photos, TESTED[1:], tmp_path, tmp_path / "out", distance=0)
    assert again == [dataclasses.replace(straight[1], of="test2.png")]


def test_a_damaged_image_is_read_again_once_it_is_replaced(photos: KnowledgeBase, tmp_path: Path) -> None:
    find_near_duplicates(photos, TESTED, tmp_path, tmp_path / "out")
    photo(9).save(tmp_path / "bad.png")
    found, counts = find_near_duplicates(photos, TESTED, tmp_path, tmp_path / "out")
    assert counts["unreadable"] == 0
    assert ("bad.png", "test9.png") in {(each.image, each.of) for each in found}


def test_a_bad_test_image_or_none_is_an_error(photos: KnowledgeBase, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no question has an image"):
        find_near_duplicates(photos, [], tmp_path, tmp_path / "out")
    with pytest.raises(UserError, match="image unreadable"):
        find_near_duplicates(photos, ["bad.png"], tmp_path, tmp_path / "out")


@pytest.fixture
def listed(kb: KnowledgeBase, tmp_path: Path) -> Callable[..., Path]:
    """Writes a list of images of `kb`, whose entry e1 has images/1.png and images/2.png."""

    def write(*images: tuple[str, str]) -> Path:
        path = tmp_path / "near_duplicates.jsonl"
        path.write_text(as_lines(NearDuplicate(entry, image, "test.png", 0) for entry, image in images))
        return path

    return write


def test_an_index_lacks_what_is_listed_and_its_manifest_says_so(kb, encoder, listed, tmp_path, draw_image) -> None:
    path = listed(("e0", "images/0.png"), ("e1", "images/2.png"))
    index = build_index(kb, encoder, tmp_path / "index", leave_out=read_omission(path, kb))
    without = {"e0": (), "e1": ("images/1.png",)}
    entries = [dataclasses.replace(e, images=without.get(e.id, e.images)) for e in kb]
    plain = write_knowledge_base(tmp_path / "plain", entries, name="owls", image_root="..")
    expected = build_index(plain, encoder, tmp_path / "expected")
    built, without = files(tmp_path / "index"), files(tmp_path / "expected")
    assert {name for name in built if built[name] != without[name]} == {"manifest.json"}
    assert index.manifest["near_duplicates"] == 2
    assert index.manifest["images"] == expected.manifest["images"] == 8
    assert index.manifest["left_out"] == {}
    assert "near_duplicates" not in expected.manifest
    built_of_all = build_index(kb, encoder, tmp_path / "all").manifest
    assert collection_of(index.manifest) != collection_of(built_of_all)  # on a server each has rows of its own
    assert (
        len(EntryRetriever(index, encoder).search([Query(draw_image(0))], 10)[0]) == 10
    )  # by its title an entry is found still


def test_an_index_is_not_taken_for_one_with_other_images(kb, encoder, listed, tmp_path) -> None:
    first = read_omission(listed(("e0", "images/0.png")), kb)
    build_index(kb, encoder, tmp_path / "index", leave_out=first)
    again = build_index(kb, encoder, tmp_path / "index", leave_out=first)
    assert again.manifest["near_duplicates"] == 1
    assert read_omission((tmp_path / "near_duplicates.jsonl").rename(tmp_path / "renamed.jsonl"), kb) == first
    with pytest.raises(UserError, match=r"built with the `leave_out` \w+, now it is \(none\)"):
        build_index(kb, encoder, tmp_path / "index")
    second = read_omission(listed(("e1", "images/1.png")), kb)
    with pytest.raises(UserError, match="go on with that, or build"):
        build_index(kb, encoder, tmp_path / "index", leave_out=second)
    build_index(kb, encoder, tmp_path / "whole")
    with pytest.raises(UserError, match=r"`leave_out` \(none\), now it is"):
        build_index(kb, encoder, tmp_path / "whole", leave_out=first)


def test_a_build_that_was_cut_off_goes_on_with_the_same_list_alone(kb, encoder, listed, tmp_path) -> None:
    first = read_omission(listed(("e0", "images/0.png")), kb)
    whole = (tmp_path / "images/9.png").read_bytes()
    (tmp_path / "images/9.png").write_text("no image")
    with pytest.raises(UserError, match="unreadable"):
        build_index(kb, encoder, tmp_path / "index", leave_out=first, shard_rows=4)
    (tmp_path / "images/9.png").write_bytes(whole)
    with pytest.raises(UserError, match="was begun with leave_out"):
        build_index(kb, encoder, tmp_path / "index", shard_rows=4)
    build_index(kb, encoder, tmp_path / "index", leave_out=first, shard_rows=4)
    build_index(kb, encoder, tmp_path / "straight", leave_out=first, shard_rows=4)
    assert files(tmp_path / "index") == files(tmp_path / "straight")


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ('{"entry": "e1"}', "1 is not a near-duplicate"),
        (as_lines([NearDuplicate("e1", "x.png", "t", 0)]), "has no image x.png of entry e1"),
        (as_lines([NearDuplicate("z", "x.png", "t", 0)]), "has no image x.png of entry z"),
    ],
)
def test_a_list_of_something_else_is_refused(kb: KnowledgeBase, tmp_path: Path, line: str, problem: str) -> None:
    (tmp_path / "list.jsonl").write_text(line)
    with pytest.raises(UserError, match=problem):
        read_omission(tmp_path / "list.jsonl", kb)
    with pytest.raises(UserError, match="can't be read"):
        read_omission(tmp_path / "nothing.jsonl", kb)


def test_an_empty_list_leaves_nothing_out_and_is_remembered(kb, encoder, tmp_path) -> None:
    (tmp_path / "list.jsonl").write_text("")
    omission = read_omission(tmp_path / "list.jsonl", kb)
    assert omission == Omission(frozenset(), omission.fingerprint)
    index = build_index(kb, encoder, tmp_path / "index", leave_out=omission)
    assert json.loads((tmp_path / "index/manifest.json").read_text())["near_duplicates"] == 0
    assert index.manifest["images"] == 10

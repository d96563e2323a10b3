"""What is said of files that are whole, missing, half downloaded, truncated, or others than they should be."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from reflectune.data_builders.downloading.checking import CHECKED, FileState, check, is_complete
from reflectune.data_builders.downloading.config import DownloadList
from reflectune.data_builders.downloading.listing import listed as as_text
from reflectune.data_builders.downloading.listing import reported
from reflectune.data_builders.readers import json_documents

Listed = Callable[..., dict[str, Any]]

ROWS = "".join(json.dumps({"data_id": f"q{n}", "question": "What is it?"}) + "\n" for n in range(3))
SHA = hashlib.sha256(ROWS.encode()).hexdigest()


def state_of(values: dict[str, Any], content: str | bytes | None = None, name: str = "") -> FileState:
    """The state of a list's only file, after something was written at its place or beside it."""
    (path,) = values["files"]
    place = Path(values["root"], path)
    if content is not None:
        target = place.with_name(name) if name else place
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content.encode() if isinstance(content, str) else content)
    (state,) = check(DownloadList(**values))
    assert state.path == place
    return state


@pytest.mark.parametrize(
    "values",
    [
        pytest.param({}, id="nothing-published"),
        pytest.param({"size": len(ROWS)}, id="size"),
        pytest.param({"rows": 3}, id="rows"),
        pytest.param({"sha256": SHA}, id="checksum"),
    ],
)
def test_a_whole_file_is_there(listed: Listed, values: dict[str, Any]) -> None:
    assert state_of(listed(**values), ROWS).state == "there"


def test_a_missing_file_says_how_it_is_had(listed: Listed, tmp_path: Path) -> None:
    state = state_of(listed(page="https://page"))
    assert state.state == "missing"
    target = tmp_path / "data" / "set" / "val.jsonl"
    assert state.why == f"curl -L -C - --create-dirs -o {target} http://host/val.jsonl; see https://page"


@pytest.mark.parametrize(
    ("values", "content", "state", "why"),
    [
        pytest.param({"size": 4000}, ROWS, "partial", f"half downloaded: {len(ROWS)} bytes of 4,000", id="short"),
        pytest.param({"size": 5}, ROWS, "wrong", f"size: {len(ROWS)} bytes, published are 5", id="long"),
        pytest.param({"sha256": "0" * 64}, ROWS, "wrong", f"checksum: its sha256 is {SHA}", id="checksum"),
        pytest.param({"rows": 4}, ROWS, "wrong", "rows: it has 3, published are 4", id="rows"),
        pytest.param({}, ROWS[:-20], "wrong", "truncated: the last line is cut off", id="cut"),
        pytest.param({}, "", "wrong", "truncated: it is empty", id="empty"),
        pytest.param({}, "<!DOCTYPE html><html>", "wrong", "a web page was saved", id="page"),
        pytest.param({}, "<?xml version='1.0'?><Error>", "wrong", "a server's error was saved", id="xml"),
        pytest.param({}, "version https://git-lfs.github.com/spec/v1\n", "wrong", "Git LFS pointer", id="lfs"),
        pytest.param({"fields": ["entity_id"]}, ROWS, "wrong", "have no `entity_id` but data_id, question", id="other"),
        pytest.param({}, "[1]\n[2]\n", "wrong", "should be a JSON object", id="no-objects"),
    ],
)
def test_a_file_that_is_not_whole_or_not_right_is_told(
    listed: Listed, values: dict[str, Any], content: str, state: str, why: str
) -> None:
    told = state_of(listed(**values), content)
    assert (told.state, why in told.why) == (state, True), told.why
    assert "\n" not in told.why


@pytest.mark.parametrize("name", ["val.jsonl.part", "val.jsonl.crdownload", "val.jsonl.aria2", ".val.jsonl.partial"])
def test_a_file_that_is_being_downloaded_is_partial(listed: Listed, name: str) -> None:
    state = state_of(listed(), ROWS[:9], name)
    assert state.state == "partial"
    assert state.why.startswith(f"{name} is there, 9 bytes; ")


def test_a_packed_file_is_to_be_unpacked(listed: Listed) -> None:
    state = state_of(listed(then="unzip it there"), b"PK", "val.jsonl.zip")
    assert (state.state, state.why) == ("partial", "val.jsonl.zip is there; unpack it: unzip it there")


def archive(path: Path, content: bytes) -> bytes:
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("kb.json", content)
    return path.read_bytes()


KB = json.dumps({"http://a": {"title": "A", "image_urls": []}}).encode()


def of_kb(listed: Listed, name: str, **values: Any) -> dict[str, Any]:
    one = listed(fields=["key", "title", "image_urls"], **values)
    return {**one, "files": {name: one["files"]["set/val.jsonl"]}}


@pytest.mark.parametrize(
    ("cut", "digest", "state", "why"),
    [
        pytest.param(0, hashlib.sha256(KB).hexdigest(), "there", "", id="whole"),
        pytest.param(30, hashlib.sha256(KB).hexdigest(), "wrong", "list of contents", id="cut"),
        pytest.param(0, "0" * 64, "wrong", "its sha256 of kb.json in it is", id="changed"),
    ],
)
def test_a_checksum_can_be_that_of_a_zips_member(
    listed: Listed, tmp_path: Path, cut: int, digest: str, state: str, why: str
) -> None:
    content = archive(tmp_path / "kb.zip", KB)
    values = of_kb(listed, "kb.zip", sha256=digest, member="kb.json")
    told = state_of(values, content[: len(content) - cut])
    assert (told.state, why in told.why) == (state, True), told.why


@pytest.mark.parametrize(
    ("name", "content", "state"),
    [
        pytest.param("kb.jsonl.gz", gzip.compress(KB + b"\n"), "wrong", id="other-rows"),
        pytest.param("kb.jsonl.gz", gzip.compress(ROWS.encode())[:-9], "wrong", id="gzip-cut"),
        pytest.param("kb.json", KB, "there", id="dict"),
        pytest.param("kb.json", KB[:-3], "wrong", id="dict-cut"),
        pytest.param("kb.csv", "key,title,image_urls\na,b,c\n", "there", id="csv"),
        pytest.param("kb.csv", "key,title\na,b\n", "wrong", id="csv-column"),
        pytest.param("kb.csv", "key,title,image_urls\n", "wrong", id="csv-empty"),
        pytest.param("kb.json", b'[{"key": 1, "title": "", "image_urls": []}]', "there", id="array"),
    ],
)
def test_each_format_is_looked_at_in_its_own_way(listed: Listed, name: str, content: Any, state: str) -> None:
    told = state_of(of_kb(listed, name), content)
    assert told.state == state, told.why


@pytest.mark.parametrize(
    ("content", "values"),
    [
        (KB, {}),
        (b'[{"key": 1, "title": "", "image_urls": []}]', {}),
        (b'{"all": [{"key": 1, "title": "", "image_urls": []}]}', {"rows_at": "all.item"}),
    ],
    ids=["dict", "array", "field"],
)
def test_only_the_first_rows_of_a_document_are_read(
    listed: Listed, monkeypatch: pytest.MonkeyPatch, content: bytes, values: dict[str, Any]
) -> None:
    """E-VQA's knowledge base has 16 GB: each check would go through all of it."""
    monkeypatch.setattr(json_documents, "json_reader_of", lambda path: pytest.fail("goes through the whole document"))
    assert state_of(of_kb(listed, "kb.json", **values), content).state == "there"


def test_rows_can_stand_in_a_field(listed: Listed) -> None:
    values = listed(fields=["id", "file_name"], rows_at="images.item")
    values = {**values, "files": {"a.json": values["files"]["set/val.jsonl"]}}
    assert state_of(values, '{"info": {}, "images": [{"id": 1, "file_name": "a.jpg"}]}').state == "there"
    assert state_of(values, '{"info": {}, "annotations": []}').state == "wrong"


@pytest.mark.parametrize(
    ("made", "state"),
    [
        pytest.param((), "missing", id="none"),
        pytest.param(("pictures/",), "missing", id="empty"),
        pytest.param(("pictures/01/oven_1.jpg",), "there", id="like-the-example"),
        pytest.param(("pictures/images/01/oven_1.jpg",), "wrong", id="one-level-too-deep"),
        pytest.param(("pictures",), "wrong", id="file"),
    ],
)
def test_a_folder_holds_something_like_its_example(listed: Listed, made: tuple[str, ...], state: str) -> None:
    values = listed(example="[0-9][0-9]/oven_*", fields=[])
    values = {**values, "files": {"pictures/": values["files"]["set/val.jsonl"]}}
    for name in made:
        place = Path(values["root"], name)
        place.mkdir(parents=True) if name.endswith("/") else place.parent.mkdir(parents=True, exist_ok=True)
        if not name.endswith("/"):
            place.write_bytes(b"x")
    (told,) = check(DownloadList(**values))
    assert told.state == state, told.why


def test_stand_ins_have_the_layout_alone(listed: Listed) -> None:
    values = {**listed(size=9, rows=9, sha256="0" * 64), "stand_ins": True}
    assert state_of(values, ROWS).state == "there"
    assert state_of(values, ROWS.replace("data_id", "id")).state == "wrong"


def test_a_file_is_read_whole_once_until_it_changes(listed: Listed, tmp_path: Path) -> None:
    values = listed(sha256=SHA, rows=3)
    assert state_of(values, ROWS).state == "there"
    record = json.loads((tmp_path / "data" / CHECKED).read_text())
    assert record["set/val.jsonl"]["rows"] == 3
    place = tmp_path / "data" / "set" / "val.jsonl"
    before = place.stat()
    place.write_text(ROWS.replace("What", "Whom"))
    os.utime(place, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert state_of(values).state == "there"  # of the same size and time: taken as unchanged
    os.utime(place)
    assert state_of(values).state == "wrong"


def test_what_is_optional_may_be_missing_but_not_wrong(listed: Listed) -> None:
    values = listed(optional=True)
    state = state_of(values)
    assert not state.is_needed
    assert is_complete((state,))
    assert not is_complete((state_of(values, ROWS[:-20]),))
    assert not is_complete((state_of(listed(), ROWS[:-20]),))


def test_a_report_has_a_line_for_each_file_and_counts(listed: Listed) -> None:
    values = listed()
    values["files"]["set/other.jsonl"] = values["files"]["set/val.jsonl"]
    Path(values["root"], "set").mkdir(parents=True)
    Path(values["root"], "set/val.jsonl").write_text(ROWS)
    first, second, last = reported(check(DownloadList(**values))).splitlines()
    assert first.split()[0] == "there"
    assert second.startswith("missing ")
    assert last == "2 files: 1 there, 1 missing"


def test_a_list_says_what_is_not_published(listed: Listed) -> None:
    text = as_text(DownloadList(**listed(rows=3, read_by=["configs/data/own.yaml"])))
    head, row, reader, total = text.splitlines()
    assert head.split() == ["what", "size", "rows", "licence", "where"]
    assert row.split("  ")[:1] == ["set/val.jsonl"]
    assert "not published" in row
    assert "http://host/val.jsonl" in row
    assert reader == "    read by configs/data/own.yaml"
    assert total == "1 entries: about 0.0 GiB, and 1 whose size is not published"

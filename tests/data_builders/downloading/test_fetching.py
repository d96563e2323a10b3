"""What the Hub has is fetched and gone on with; what stops it is one line; the rest is told how it is had."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants

from reflectune.core.errors import UserError
from reflectune.data_builders import download
from reflectune.data_builders.downloading.checking import check
from reflectune.data_builders.downloading.config import DownloadList
from reflectune.data_builders.downloading.fetching import fetch

COMMIT = "0123456789abcdef0123456789abcdef01234567"
FILE = {"licence": "MIT", "hub": "datasets/owner/instruct", "file": "instruct.json", "revision": COMMIT}
MODEL = {"licence": "MIT", "revision": COMMIT, "file": ["model/*"]}


@pytest.fixture
def config(tmp_path: Path) -> DownloadList:
    files = {"llava/instruct.json": {**FILE, "fields": ["id"]}}
    return DownloadList(root=str(tmp_path / "data"), files=files, models={"owner/instruct": MODEL})


def states(config: DownloadList) -> list[str]:
    return [state.state for state in check(config)]


def test_what_the_hub_has_is_fetched_once(config: DownloadList, hub: Any) -> None:
    assert states(config) == ["missing", "missing"]
    said: list[str] = []
    fetched = fetch(config, said.append)
    assert [state.state for state in fetched] == states(config) == ["there", "there"]
    assert Path(config.root, "llava", "instruct.json").read_bytes() == hub.files["instruct.json"]
    assert [line.split(":")[0] for line in said] == ["llava/instruct.json", "owner/instruct"]
    hub.asked.clear()
    fetch(config, said.append)
    assert hub.asked == []
    assert len(said) == 2


def test_a_commit_is_asked_for_and_only_the_files_wanted(config: DownloadList, hub: Any) -> None:
    fetch(config, lambda line: None)
    fetched = {path.partition("/resolve/")[2] for path in hub.asked if path.startswith("GET") and "/resolve/" in path}
    assert fetched == {f"{COMMIT}/instruct.json", f"{COMMIT}/model/config.json"}


def test_a_folder_of_a_repository_goes_where_its_path_says(tmp_path: Path, hub: Any) -> None:
    hub.files |= {"part/a.txt": b"a", "party/b.txt": b"b"}
    values = {**FILE, "file": "part/", "example": "*.txt"}
    config = DownloadList(root=str(tmp_path / "data"), files={"m2kr/part/": values})
    (state,) = fetch(config, lambda line: None)
    assert state.state == "there"
    assert sorted(path.name for path in (tmp_path / "data/m2kr").rglob("*.txt")) == ["a.txt"]
    assert (tmp_path / "data/m2kr/part/a.txt").is_file()


def test_a_file_of_the_hub_that_changed_is_wrong_and_left_alone(config: DownloadList, hub: Any) -> None:
    """The Hub says a large file's sha256 when it sends it, and its client keeps that."""
    fetch(config, lambda line: None)
    place = Path(config.root, "llava", "instruct.json")
    place.write_text(json.dumps([{"id": "2"}]))
    said: list[str] = []
    fetched = fetch(config, said.append)
    assert fetched[0].state == "wrong"
    assert "checksum: its sha256 is" in said[0]
    assert json.loads(place.read_text()) == [{"id": "2"}]


def test_a_download_that_was_stopped_is_partial_and_gone_on_with(config: DownloadList, hub: Any) -> None:
    fetch(config, lambda line: None)
    place = Path(config.root, "llava", "instruct.json")
    records = place.parent / ".cache" / "huggingface" / "download"
    place.unlink()
    (records / "abc.incomplete").write_bytes(b"[")
    assert states(config) == ["partial", "there"]
    (state, _) = fetch(config, lambda line: None)
    assert (state.state, place.is_file()) == ("there", True)


@pytest.mark.parametrize(
    ("status", "error", "told"),
    [
        pytest.param(403, "GatedRepo", "owner/instruct is gated: accept its licence at http", id="gated"),
        pytest.param(401, "RepoNotFound", "the Hub gives no owner/instruct (status 401)", id="private"),
        pytest.param(401, "", "the Hub gives no owner/instruct (status 401)", id="login"),
        pytest.param(403, "", "the Hub gives no owner/instruct (status 403)", id="forbidden"),
        pytest.param(404, "RevisionNotFound", f"owner/instruct has no commit {COMMIT}", id="commit"),
        pytest.param(418, "", "the Hub answers status 418 for owner/instruct", id="other"),
    ],
)
def test_what_the_hub_refuses_is_one_line_each(
    config: DownloadList, hub: Any, status: int, error: str, told: str
) -> None:
    hub.status, hub.error = status, error
    said: list[str] = []
    fetched = fetch(config, said.append)
    assert [state.state for state in fetched] == ["missing", "missing"]
    assert [line.split(":")[0] for line in said] == ["llava/instruct.json", "owner/instruct"]
    assert all(told in line and "\n" not in line for line in said), said


def test_a_file_that_the_commit_lacks_is_one_line(config: DownloadList, hub: Any) -> None:
    del hub.files["instruct.json"]
    said: list[str] = []
    fetch(config, said.append)
    assert said[0].startswith(f"llava/instruct.json: owner/instruct has no file instruct.json at {COMMIT}; see http")
    assert said[1].startswith("owner/instruct: there")


@pytest.mark.parametrize("how", ["closed", "offline"])
def test_no_hub_is_one_line_for_all(config: DownloadList, hub: Any, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.close()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", how == "offline")
    said: list[str] = []
    fetched = fetch(config, said.append)
    assert [state.state for state in fetched] == ["missing", "missing"]
    (line,) = said
    assert line.startswith(f"the Hub at {hub.url} isn't reached (")
    assert "\n" not in line


def test_a_disk_that_is_too_small_is_told_before_anything_is_fetched(
    config: DownloadList, hub: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda place: usage(10, 9, 1))
    with pytest.raises(UserError, match=r"GiB free, and .* GiB are to be fetched \(llava/instruct.json, owner/ins"):
        fetch(config, lambda line: None)
    assert not [path for path in hub.asked if path.startswith("GET") and "/resolve/" in path]


def test_what_is_had_by_hand_is_told(tmp_path: Path, hub: Any) -> None:
    values = {"licence": "MIT", "page": "https://page", "then": "unpack it there", "optional": True}
    said: list[str] = []
    fetch(DownloadList(root=str(tmp_path / "data"), files={"a/b/": values}), said.append)
    assert said == ["a/b/ (optional): missing: see https://page; then unpack it there"]
    assert hub.asked == []


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["download", *arguments])
    try:
        download.main()
    except SystemExit as ended:
        return int(ended.code or 0)
    return 0


def test_the_command_fails_unless_all_is_there(
    tmp_path: Path, hub: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "list.yaml"
    entry = "".join(f"    {key}: {value!r}\n" for key, value in FILE.items())
    path.write_text(f"root: {tmp_path / 'data'}\nfiles:\n  llava/instruct.json:\n{entry}")
    arguments = ["--config", str(path)]
    assert run(monkeypatch, *arguments, "--list") == 0
    assert not (tmp_path / "data").exists()
    assert run(monkeypatch, *arguments, "--check") == 1
    assert capsys.readouterr().out.splitlines()[-1] == "1 files: 1 missing"
    assert run(monkeypatch, *arguments) == 0
    assert run(monkeypatch, *arguments, "--check") == 0
    assert capsys.readouterr().out.splitlines()[-1] == "1 files: 1 there"
    os.truncate(tmp_path / "data" / "llava" / "instruct.json", 5)
    assert run(monkeypatch, *arguments) == 1

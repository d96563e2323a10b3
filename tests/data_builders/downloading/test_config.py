"""Lists of public files: sizes as pages give them, entries that say too little or too much, and the shipped lists."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from reflectune.core.config import read_config
from reflectune.data_builders.downloading.config import DownloadConfig, DownloadList, parse_size

ROOT = Path(__file__).parents[3]
LISTS = sorted((ROOT / "configs" / "reproduce").glob("*/downloads.yaml"))


@pytest.mark.parametrize(
    ("text", "bytes_", "fits"),
    [
        pytest.param("245M", 245_000_000, True, id="of-1000"),
        pytest.param("245M", 245 * 1024**2, True, id="of-1024"),
        pytest.param("245M", 244_400_000, False, id="below"),
        pytest.param("245M", 246 * 1024**2, False, id="above"),
        pytest.param("4.9GB", 4_851_000_000, True, id="decimal-rounded-up"),
        pytest.param("4.9GB", 4_800_000_000, False, id="decimal-below"),
        pytest.param(1234, 1234, True, id="exact"),
        pytest.param(1234, 1233, False, id="one-less"),
    ],
)
def test_a_size_is_as_exact_as_it_is_published(text: int | str, bytes_: int, fits: bool) -> None:
    size = parse_size(text)
    assert (size.low <= bytes_ <= size.high) is fits


@pytest.mark.parametrize("text", ["245", "M", "245 M", "-1M", 0, "1.M"])
def test_what_is_no_size_is_refused(text: int | str) -> None:
    with pytest.raises(ValueError, match="no size"):
        parse_size(text)


@pytest.mark.parametrize(
    ("path", "values", "problem"),
    [
        pytest.param("a", {"licens": "MIT", "url": "http://host/a"}, "did you mean `licence`", id="typo"),
        pytest.param("a", {"licence": "MIT"}, "one of `hub`, `url` and `page`", id="no-source"),
        pytest.param("a", {"url": "http://host/a"}, "`licence` is needed", id="no-licence"),
        pytest.param("../a", {"licence": "MIT", "url": "http://host/a"}, "no path below", id="outside"),
        pytest.param("/a", {"licence": "MIT", "url": "http://host/a"}, "no path below", id="absolute"),
        pytest.param("a", {"licence": "MIT", "url": "ftp://host/a"}, "is no address", id="scheme"),
        pytest.param("a", {"licence": "MIT", "hub": "n", "file": "a"}, "is no OWNER/NAME", id="repository"),
        pytest.param("a", {"licence": "MIT", "hub": "o/n", "file": "b"}, "must end with `file`", id="name"),
        pytest.param("a", {"licence": "MIT", "hub": "o/n", "file": "a", "revision": "main"}, "whole commit", id="pin"),
        pytest.param("a", {"licence": "MIT", "url": "http://h/a", "sha256": "ab"}, "64 hexadecimal", id="checksum"),
        pytest.param("a", {"licence": "MIT", "url": "http://h/a", "size": "big"}, "no size", id="size"),
        pytest.param("a", {"licence": "MIT", "url": "http://h/a", "rows": True}, "another type", id="type"),
        pytest.param("a", "http://host/a", "needs a mapping", id="text"),
    ],
)
def test_an_entry_that_says_something_wrong_is_told(path: str, values: Any, problem: str) -> None:
    (told,) = DownloadList(files={path: values}).problems()
    assert f"`{path}`" in told
    assert problem in told


def test_only_takes_what_begins_so(listed: Any) -> None:
    values = listed()
    values["files"]["other/a.csv"] = values["files"]["set/val.jsonl"]
    assert [file.path for file in DownloadList(**values, only=["other/"]).chosen()] == ["other/a.csv"]
    assert "nothing in the list begins with x" in DownloadList(**values, only=["x"]).problems()[0]


@pytest.mark.parametrize("path", LISTS, ids=lambda path: path.parent.name)
def test_a_shipped_list_is_right_and_names_configs_that_are_there(path: Path) -> None:
    config = read_config(DownloadConfig, path)
    files = config.chosen()
    assert len(files) == len(config.files) + len(config.models) > 20
    assert [name for file in files for name in file.read_by if not (ROOT / name).is_file()] == []


@pytest.mark.parametrize("path", LISTS, ids=lambda path: path.parent.name)
def test_configs_read_what_the_list_says_they_read(path: Path) -> None:
    """Each file's own name stands in a config that is said to read it."""
    files = [file for file in read_config(DownloadConfig, path).chosen() if file.read_by]
    unread = [
        file.name
        for file in files
        for name in file.read_by
        if _last(file.name) not in (text := (ROOT / name).read_text(encoding="utf-8"))
        and _parent(file.name) not in text
    ]
    assert unread == []


def _last(name: str) -> str:
    return name.rstrip("/").rpartition("/")[2]


def _parent(name: str) -> str:
    """A picture folder's place: configs name the folder above `train2014`, `inaturalist/val` or `landmarks`."""
    return "images:" if name.endswith("/") else name


def test_there_is_a_list_for_each_paper() -> None:
    assert [path.parent.name for path in LISTS] == ["mmkb_rag", "mr2ag"]


def test_a_list_without_entries_says_where_one_is() -> None:
    (told,) = DownloadList().problems()
    assert "configs/reproduce/mr2ag/downloads.yaml" in told

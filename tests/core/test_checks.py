from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import pytest

from reflectune.core import checks


@pytest.mark.parametrize("value", ["auto", "cpu", "cuda", "cuda:0", "cuda:15", "mps", "xpu:1"])
def test_a_device_may_be_called(value: str) -> None:
    assert checks.device(value) == ""


@pytest.mark.parametrize("value", ["", "meta", "CPU", "cuda:", "cuda:-1", "cuda:1000", "cpu\n", "tpu", "cuda:0,cuda:1"])
def test_no_device_is_called(value: str) -> None:
    assert "must be auto, cpu, cuda or cuda:0" in checks.device(value)


@pytest.mark.parametrize("value", ["", "train", "val_unseen_entity", "test-2.1", "Prüfung", "a b", "x" * 100])
def test_a_split_may_be_called(value: str) -> None:
    assert checks.split_name(value) == ""


@pytest.mark.parametrize(
    "value", [".", "..", "a/b", "a\\b", "/", "a\0", "a\n", " a", "a ", "x" * 101, "🦉" * 60, "a:b"]
)
def test_no_split_is_called(value: str) -> None:
    assert checks.split_name(value).startswith("must be ")
    assert "\n" not in checks.split_name(value)


def test_inputs_are_there_and_of_the_right_kind(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    file, folder, nothing = str(tmp_path / "file"), str(tmp_path), str(tmp_path / "x")

    assert [checks.file(""), checks.file(file), checks.folder(""), checks.folder(folder)] == [""] * 4
    assert checks.file(nothing) == f"there is no file {nothing}"
    assert checks.file(folder) == f"{folder} is a folder; name a file"
    assert checks.folder(nothing) == f"there is no folder {nothing}"
    assert checks.folder(file) == f"{file} is a file; name a folder"
    assert checks.file("a" * 300).startswith("there is no file ")


def test_outputs_can_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    monkeypatch.chdir(tmp_path)

    assert [checks.output_folder(value) for value in ("", ".", "new", "new/deeper", str(tmp_path / "a"))] == [""] * 5
    assert [checks.output_file(value) for value in ("", "scores.json", "new/scores.json", "file")] == [""] * 4
    for value in ("file", "file/new", "file/new/deeper", "dangling", "a" * 256, f"new/{'ü' * 128}"):
        assert checks.output_folder(value), value
    assert "is a folder; name a file to write, e.g. " in checks.output_file(str(tmp_path))
    assert "is a folder" in checks.output_file("new/")
    assert "file is no folder" in checks.output_file("file/scores.json")
    assert "too long" in checks.output_file("a" * 250)


def test_a_folder_that_holds_something_else_is_no_output(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text("{}")
    own, other = checks.output_of("manifest.json"), checks.output_of("dataset.json", "kb.json")

    assert own(str(tmp_path)) == ""
    assert other(str(tmp_path)) == f"{tmp_path} holds an index already; choose another folder"
    assert [other(str(tmp_path / "new")), other("")] == ["", ""]
    assert other(str(tmp_path / "manifest.json")).endswith("is no folder; name another one")


def test_the_root_of_a_project_is_no_output(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("")

    told = checks.output_of("config.json")(str(tmp_path))

    assert told == f"{tmp_path} holds the source of a project already; choose another folder"


def test_a_folder_that_can_only_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda place, mode: False)  # root may write everywhere

    assert checks.output_folder(str(tmp_path / "a" / "b")).endswith(f"{tmp_path} is read-only; name another folder")
    assert f"{tmp_path} is read-only" in checks.output_file(str(tmp_path / "scores.json"))


@pytest.mark.parametrize("value", [0, -1, 1.5, 2**53, -(2**53), True, "nan", None, [math.nan]])
def test_a_number_may_be_or_no_number(value: Any) -> None:
    assert checks.number(value) == ""


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 2**53 + 1, 10**400, -(10**400), 1e300])
def test_no_number_is(value: Any) -> None:
    assert checks.number(value).startswith("must be ")
    assert len(checks.number(value)) < 120


def test_what_an_error_shows_is_short_and_has_no_password() -> None:
    assert checks.short("x" * 1000) == "x" * 200 + "…"
    assert checks.short(["http://me:hidden@host"]) == "['http://***@host']"
    assert checks.one_line("a\nb\x1b[1m") == "a\\nb\\x1b[1m"

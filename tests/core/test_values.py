import os
from pathlib import Path
from typing import Annotated

import pytest
from pydantic import TypeAdapter, ValidationError

from reflectune.core import values


@pytest.mark.parametrize("value", ["auto", "cpu", "cuda", "cuda:15", "xpu:1"])
def test_a_device_name_is_accepted(value: str) -> None:
    assert values.device_problem(value) == ""


@pytest.mark.parametrize("value", ["", "meta", "CPU", "cuda:", "cuda:-1", "cuda:1000", "cpu\n"])
def test_an_invalid_device_name_is_refused(value: str) -> None:
    assert "must be auto, cpu, cuda or cuda:0" in values.device_problem(value)


@pytest.mark.parametrize("value", ["", "train", "val_unseen_entity", "test-2.1", "Prüfung", "x" * 100])
def test_a_split_name_is_accepted(value: str) -> None:
    assert values.split_problem(value) == ""


@pytest.mark.parametrize(
    "value", [".", "..", "a/b", "a\\b", "/", "a\0", "a\n", " a", "a ", "a b", "x" * 101, "🦉" * 60, "a:b"]
)
def test_an_invalid_split_name_is_refused(value: str) -> None:
    assert values.split_problem(value).startswith("must ")
    assert "\n" not in values.split_problem(value)


def test_an_input_file_must_exist_and_be_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    file, folder, nothing = str(tmp_path / "file"), str(tmp_path), str(tmp_path / "x")
    assert values.file_problem("") == values.file_problem(file) == ""
    assert values.file_problem(nothing) == f"must be an existing file, found {nothing}"
    assert values.file_problem(folder) == f"must be an existing file, found the folder {folder}"
    assert values.file_problem("a" * 300).startswith("must be an existing file, found aaa")


def test_outputs_can_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    monkeypatch.chdir(tmp_path)
    assert [values.output_folder_problem(value) for value in ("", ".", "new", "new/deeper", str(tmp_path / "a"))] == [
        ""
    ] * 5
    assert [values.output_file_problem(value) for value in ("", "scores.json", "new/scores.json", "file")] == [""] * 4
    for value in ("file", "file/new", "file/new/deeper", "dangling", "a" * 256, f"new/{'ü' * 128}"):
        assert values.output_folder_problem(value), value
    assert "is a folder; name a file to write, e.g. " in values.output_file_problem(str(tmp_path))
    assert "is a folder" in values.output_file_problem("new/")
    assert "file is not a folder" in values.output_file_problem("file/scores.json")
    assert "too long" in values.output_file_problem("a" * 250)


@pytest.mark.parametrize(
    ("file", "content"), [("manifest.json", "an index"), ("pyproject.toml", "the source of a project")]
)
def test_a_folder_that_holds_something_else_is_no_output(tmp_path: Path, file: str, content: str) -> None:
    (tmp_path / file).write_text("{}")
    own = TypeAdapter(Annotated[str, values.output_of(file)])
    dataset = TypeAdapter(Annotated[str, values.output_of("dataset.json", "kb.json")])
    assert own.validate_python(str(tmp_path)) == str(tmp_path)
    assert [dataset.validate_python(value) for value in (str(tmp_path / "new"), "")] == [str(tmp_path / "new"), ""]
    with pytest.raises(ValidationError, match=f"holds {content} already; choose a different folder"):
        dataset.validate_python(str(tmp_path))
    with pytest.raises(ValidationError, match="is not a folder; name a different one"):
        dataset.validate_python(str(tmp_path / file))


def test_a_folder_that_can_only_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda place, mode: False)  # root may write everywhere
    assert values.output_folder_problem(str(tmp_path / "a" / "b")).endswith(
        f"{tmp_path} is read-only; name a different folder"
    )
    assert f"{tmp_path} is read-only" in values.output_file_problem(str(tmp_path / "scores.json"))


def test_a_name_is_one_of_a_registrys() -> None:
    kind = TypeAdapter(Annotated[str, values.one_of("words", "embedding")])
    assert kind.validate_python("words") == "words"
    with pytest.raises(ValidationError, match="must be one of words, embedding, found 'word'"):
        kind.validate_python("word")


def test_what_an_error_shows_is_short_and_has_no_password() -> None:
    assert values.short("x" * 1000) == "x" * 200 + "…"
    assert values.short(["http://me:hidden@host"]) == "['http://***@host']"
    assert values.one_line("a\nb\x1b[1m") == "a\\nb\\x1b[1m"

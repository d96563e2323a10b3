import os
from pathlib import Path

import pytest

from reflectune.core.locking import lock_path, remove, take
from reflectune.core.partials import remove_partials, writing


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def leave(path: Path, pid: int = 999_999) -> Path:
    """Make a partial file as a killed run leaves it."""
    partial = path.with_name(f".{path.name}.{pid}.partial")
    partial.parent.mkdir(parents=True, exist_ok=True)
    partial.write_text("half")
    return partial


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    with writing(tmp_path / "new" / "file") as partial:
        partial.write_text("whole")
        assert names(tmp_path / "new") == [f".file.{os.getpid()}.partial"]
    with pytest.raises(UnicodeEncodeError), writing(tmp_path / "new" / "file") as partial:
        partial.write_text("half, and then \ud800", encoding="utf-8")
    assert names(tmp_path / "new") == ["file"]
    assert (tmp_path / "new" / "file").read_text() == "whole"


def test_a_folder_takes_the_place_of_an_empty_one_only(tmp_path: Path) -> None:
    for name, content in (("empty", False), ("full", True)):
        (tmp_path / name).mkdir()
        if content:
            (tmp_path / name / "mine").write_text("kept")
    with writing(tmp_path / "empty") as partial:
        (partial / "inner").mkdir(parents=True)
    with pytest.raises(OSError), writing(tmp_path / "full") as partial:
        (partial / "inner").mkdir(parents=True)
    assert names(tmp_path / "empty") == ["inner"]
    assert names(tmp_path / "full") == ["mine"]
    assert names(tmp_path) == ["empty", "full"]


def test_leftovers_in_and_next_to_an_output_are_removed(tmp_path: Path) -> None:
    out = tmp_path / "out"
    for place in (out, out / "file", out / "deep" / "file"):
        leave(place)
    (out / ".best.partial" / "inner").mkdir(parents=True)
    kept = [leave(tmp_path / "other"), leave(tmp_path / "out.other"), out / "notes.partial", out / ".file.old"]
    for path in kept[2:]:
        path.write_text("the user's")
    remove_partials(out)
    assert sorted(path for path in tmp_path.rglob("*") if path.is_file()) == sorted(kept)


def test_partial_files_of_another_process_stay(tmp_path: Path) -> None:
    inner = tmp_path / "out" / "inner"
    partial, within = leave(inner), leave(inner / "file")
    lock = take(lock_path(inner))
    assert lock is not None
    remove_partials(tmp_path / "out")
    assert partial.exists()
    assert within.exists()
    remove(lock)
    remove_partials(tmp_path / "out")
    assert names(inner) == []
    assert names(tmp_path / "out") == ["inner"]


def test_a_long_name_has_room_for_its_partial_file(tmp_path: Path) -> None:
    path = tmp_path / ("ä" * 127)
    with writing(path) as partial:
        partial.write_text("whole")
    leave(partial.with_name(partial.name.removeprefix(".").removesuffix(f".{os.getpid()}.partial")))
    assert len(names(tmp_path)) == 2
    remove_partials(path)
    assert names(tmp_path) == [path.name]

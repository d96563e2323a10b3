import subprocess
import sys
from pathlib import Path

import pytest

from reflectune.core.locking import is_held, lock_path
from reflectune.examples.pocket.models.cache import locked, replacing


def write(folder: Path, content: str) -> None:
    with replacing(folder) as partial:
        (partial / "file").write_text(content)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_folder_is_replaced_whole(tmp_path: Path) -> None:
    write(tmp_path / "out", "first")
    write(tmp_path / "out", "second")
    assert (tmp_path / "out" / "file").read_text() == "second"
    assert names(tmp_path) == ["out"]


def test_after_an_error_the_old_folder_is_there_and_nothing_else(tmp_path: Path) -> None:
    write(tmp_path / "out", "first")
    with pytest.raises(FileNotFoundError), replacing(tmp_path / "out") as partial:
        (partial / "no folder" / "file").write_text("half")
    assert (tmp_path / "out" / "file").read_text() == "first"
    assert names(tmp_path) == ["out"]


def test_leftovers_of_a_killed_process_are_deleted(tmp_path: Path) -> None:
    kill = (
        "import os, signal, sys\nfrom reflectune.examples.pocket.models.cache import replacing\n"
        "with replacing(sys.argv[1]) as partial:\n"
        "    (partial / 'file').write_text('half')\n    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    subprocess.run([sys.executable, "-c", kill, str(tmp_path / "out")], check=False)
    assert names(tmp_path) == [".out.partial"]
    write(tmp_path / "out", "whole")
    assert names(tmp_path) == ["out"]


def test_a_kill_between_the_two_renamings_loses_nothing(tmp_path: Path) -> None:
    (tmp_path / ".out.old").mkdir()
    (tmp_path / ".out.old" / "file").write_text("first")
    with pytest.raises(RuntimeError), replacing(tmp_path / "out"):
        raise RuntimeError
    assert (tmp_path / "out" / "file").read_text() == "first"


def test_two_processes_take_turns(tmp_path: Path) -> None:
    """Each adds a letter to a file that it reads: without the lock some are lost."""
    add = (
        "import sys, time, pathlib\nfrom reflectune.examples.pocket.models.cache import locked\n"
        "path = pathlib.Path(sys.argv[1]) / 'log'\n"
        "for _ in range(5):\n    with locked(sys.argv[1]):\n"
        "        lines = path.read_text() if path.exists() else ''\n        time.sleep(0.01)\n"
        "        path.write_text(lines + 'x')\n"
    )
    folder = tmp_path / "out"
    folder.mkdir()
    runs = [subprocess.Popen([sys.executable, "-c", add, str(folder)], stderr=subprocess.DEVNULL) for _ in range(3)]
    assert [run.wait() for run in runs] == [0, 0, 0]
    assert (folder / "log").read_text() == "x" * 15
    with locked(folder):
        assert is_held(lock_path(folder))
    assert [path.name for path in tmp_path.iterdir()] == ["out"]

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from reflectune.core.locking import is_held, lock_path, locked, take

Start = Callable[..., "subprocess.Popen[str]"]

HOLDING = """
import sys, time
from reflectune.core.locking import take
lock = take(sys.argv[1])
print("held", flush=True)
time.sleep(60)
"""
FORKING = """
import os, sys, time
from reflectune.core.locking import take
lock = take(sys.argv[1])
worker = os.fork()
if worker == 0:
    print(os.getpid(), flush=True)
time.sleep(60)
"""
EXECUTING = """
import subprocess, sys, time
from reflectune.core.locking import take
lock = take(sys.argv[1])
worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], close_fds=False)
print(worker.pid, flush=True)
time.sleep(60)
"""


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a program with arguments and waits for its first line, which becomes its `said`."""
    started: list[Any] = []

    def run(program: str, *arguments: str) -> Any:
        command = [sys.executable, "-c", program, *arguments]
        process: Any = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        started.append(process)
        process.said = process.stdout.readline().strip()
        return process

    yield run
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


def test_a_lock_ends_with_the_process_that_holds_it(tmp_path: Path, start: Start) -> None:
    path = tmp_path / "lock"
    other = start(HOLDING, str(path))
    assert take(path) is None
    assert is_held(path)
    other.send_signal(signal.SIGKILL)
    other.wait()
    assert not is_held(path)
    lock = take(path)
    assert lock is not None
    assert lock.was_left


@pytest.mark.parametrize("program", [FORKING, EXECUTING])
def test_a_worker_that_outlives_its_parent_holds_nothing(program: str, tmp_path: Path, start: Start) -> None:
    path = tmp_path / "lock"
    parent: Any = start(program, str(path))
    assert is_held(path)
    parent.kill()
    parent.wait()
    try:
        os.kill(int(parent.said), 0)  # it lives
        assert not is_held(path)
    finally:
        os.kill(int(parent.said), signal.SIGKILL)


def test_a_forked_workers_end_takes_nothing_from_its_parent(tmp_path: Path) -> None:
    lock = take(tmp_path / "lock")
    assert lock is not None
    worker = os.fork()
    if worker == 0:
        lock.release(remove=True)
        os._exit(0)
    os.waitpid(worker, 0)
    assert is_held(tmp_path / "lock")
    lock.release(remove=True)
    lock.release(remove=True)
    assert not list(tmp_path.iterdir())


def test_a_lock_file_that_was_deleted_meanwhile_is_not_taken_for_the_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between opening the file and locking it, its holder deletes it and a third process makes a new one."""
    path, flock, first = tmp_path / "lock", fcntl.flock, [True]

    def late(file: Any, mode: int) -> None:
        if first.pop() if first else False:
            path.unlink()
            path.write_text("new")
        flock(file, mode)

    monkeypatch.setattr(fcntl, "flock", late)
    lock = take(path)
    assert lock is not None
    assert lock.read() == b"new"


def test_shared_locks_are_many_and_the_last_one_takes_the_file_away(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    first = take(path)
    assert first is not None
    assert take(path, shared=True) is None
    assert first.share()
    second = take(path, shared=True)
    assert second is not None
    assert take(path) is None
    first.release(remove=True)
    assert path.exists()
    second.release(remove=True)
    assert not path.exists()


def test_two_processes_take_turns(tmp_path: Path) -> None:
    """Each adds a line after reading what is there: without the lock some are lost."""
    add = (
        "import sys, time, pathlib\nfrom reflectune.core.locking import locked\n"
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


def test_a_file_system_without_locks_is_said_once(tmp_path: Path) -> None:
    program = (
        "import errno, fcntl, pathlib, sys\nfrom reflectune.core.locking import is_held, take\n"
        "def flock(file, mode):\n    raise OSError(errno.ENOLCK, 'No locks available')\n"
        "fcntl.flock = flock\nfolder = pathlib.Path(sys.argv[1])\n"
        "for name in ('one', 'two'):\n    take(folder / name).release(remove=True)\n"
        "assert not is_held(folder / 'one')\n"
    )
    said = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True)
    assert said.stderr.count("\n") == 1
    assert f"{tmp_path} is on a file system without locks (No locks available)" in said.stderr
    assert not list(tmp_path.iterdir())


def test_another_users_lock_file_is_locked_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, opened = tmp_path / "lock", os.open
    path.write_text("theirs")

    def refuse(name: Any, flags: int, *mode: int) -> int:
        if flags & os.O_RDWR:
            raise PermissionError(errno.EACCES, "Permission denied", name)
        return opened(name, flags, *mode)

    monkeypatch.setattr(os, "open", refuse)
    lock = take(path)
    assert lock is not None
    lock.append(b"mine")
    assert is_held(path)
    assert lock.read() == b"theirs"

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from reflectune.core.locking import is_held, remove, take

Start = Callable[..., Any]

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
WAITING = """
import sys
from reflectune.core.locking import take
print("waiting", flush=True)
lock = take(sys.argv[1], wait=True)
print("held", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("program", [FORKING, EXECUTING])
def test_a_worker_that_outlives_its_parent_holds_nothing(program: str, tmp_path: Path, start_python: Start) -> None:
    path = tmp_path / "lock"
    parent = start_python(program, str(path))
    worker = int(parent.stdout.readline())
    assert is_held(path)
    parent.kill()
    parent.wait()
    try:
        os.kill(worker, 0)  # it lives
        assert not is_held(path)
    finally:
        os.kill(worker, signal.SIGKILL)


def test_a_forked_workers_end_takes_nothing_from_its_parent(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    lock = take(path)
    assert lock is not None
    worker = os.fork()
    if worker == 0:
        remove(lock)
        os._exit(0)
    os.waitpid(worker, 0)
    assert is_held(path)
    remove(lock)
    remove(lock)
    assert not list(tmp_path.iterdir())


def test_a_process_that_waits_locks_the_file_that_is_there(tmp_path: Path, start_python: Start) -> None:
    """The holder deletes the file that the other process waits for."""
    path = tmp_path / "lock"
    lock = take(path)
    assert lock is not None
    waiting = start_python(WAITING, str(path))
    assert waiting.stdout.readline() == "waiting\n"
    remove(lock)
    assert waiting.stdout.readline() == "held\n"
    assert is_held(path)


def test_a_link_locks_the_file_that_it_leads_to(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("file")
    lock = take(tmp_path / "link")
    assert lock is not None
    assert take(tmp_path / "file") is None


def test_a_file_system_without_locks_gives_one_warning(tmp_path: Path) -> None:
    program = (
        "import errno, fcntl, pathlib, sys\nfrom reflectune.core.locking import is_held, take\n"
        "def flock(file, mode):\n    raise OSError(errno.ENOLCK, 'No locks available')\n"
        "fcntl.flock = flock\nfolder = pathlib.Path(sys.argv[1])\n"
        "for name in ('one', 'two'):\n    assert take(folder / name) is not None\n"
        "assert not is_held(folder / 'one')\n"
    )
    ended = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True)
    assert ended.stderr.count("\n") == 1
    assert f"{tmp_path} is on a file system without locks (No locks available)" in ended.stderr

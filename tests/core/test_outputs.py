import errno
import os
import re
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from reflectune.core.entry_point import entry_point
from reflectune.core.errors import UserError
from reflectune.core.locking import is_held, lock_path, remove, take
from reflectune.core.outputs import hold, release_outputs

Run = Callable[..., Any]

HOLDING = """
import sys, time
from reflectune.core.errors import UserError
from reflectune.core.outputs import hold
try:
    hold(sys.argv[1])
    print("held", flush=True)
except UserError as error:
    print(error, flush=True)
    sys.exit(2)
time.sleep(120)
"""
LAUNCHING = """
import os, subprocess, sys, time
environment = {**os.environ, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
ranks = [
    subprocess.Popen([sys.executable, *sys.argv[1:]], env={**environment, "RANK": str(rank)}, stdout=subprocess.PIPE)
    for rank in range(2)
]
for rank in ranks:
    print(rank.pid, rank.stdout.readline().decode().strip(), flush=True)
time.sleep(120)
"""


@pytest.fixture(autouse=True)
def _release() -> Iterator[None]:
    yield
    release_outputs()


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "runs" / "out"


def refusal(out: Path) -> str:
    with pytest.raises(UserError) as caught:
        hold(out)
    return str(caught.value)


def test_the_second_command_learns_who_writes_until_that_process_is_killed(out: Path, start_python: Run) -> None:
    other = start_python(HOLDING, str(out), "--config", "a.yaml", "--llm_url", "http://me:PASS@host", "--key=PASS")
    assert other.stdout.readline() == "held\n"
    pattern = (
        rf"{out} is being written by PID {other.pid} on {re.escape(socket.gethostname())} "
        r"since \d{4}-\d\d-\d\d \d\d:\d\d "
        r"\(python \S+ --config a\.yaml\); wait for it, or stop it; then the same command goes on"
    )
    assert re.fullmatch(pattern, refusal(out))
    assert b"PASS" not in lock_path(out).read_bytes()
    other.kill()
    other.wait()
    hold(out)
    assert lock_path(out).read_text().startswith(f"PID {os.getpid()} on ")


def test_a_command_of_the_front_door_is_named_by_its_word(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for config in (["--config", "a.yaml"], ["--config=a.yaml"]):
        monkeypatch.setattr(sys, "argv", ["/bin/reflectune", "build_index", *config, "--store", "x"])
        hold(out)
        assert lock_path(out).read_text().endswith(" (reflectune build_index --config a.yaml)")
        release_outputs()


def test_an_output_is_the_same_by_any_name(out: Path, start_python: Run) -> None:
    out.mkdir(parents=True)
    link = out.parent.parent / "link"
    link.symlink_to(out, target_is_directory=True)
    assert start_python(HOLDING, str(link)).stdout.readline() == "held\n"
    for name in (str(out), f"{out}/", f"{out.parent}/./out", str(link)):
        assert "is being written by PID" in refusal(Path(name))
    hold(out.parent / "another", out / "inner")


def test_an_entry_point_lets_go_and_an_error_before_anything_is_written_leaves_nothing(out: Path) -> None:
    @entry_point
    def main() -> None:
        hold(out, out, "", out.parent / "file.json")
        hold(out)
        assert is_held(lock_path(out))
        raise UserError("no such model")

    with pytest.raises(SystemExit):
        main()
    assert not out.parent.exists()


def test_leftovers_are_removed_once_the_output_is_held(out: Path) -> None:
    left = [out / "deep" / ".file.77.partial", out.parent / ".out.77.partial"]
    left[0].parent.mkdir(parents=True)
    for path in left:
        path.write_text("half")
    lock = take(lock_path(out))
    assert lock is not None
    assert "by another process" in refusal(out)  # its holder has written nothing about itself
    assert all(path.exists() for path in left)
    remove(lock)
    hold(out)
    assert not any(path.exists() for path in left)


def test_the_first_process_of_a_launch_holds_for_all(out: Path, start_python: Run) -> None:
    launcher = start_python(LAUNCHING, "-c", HOLDING, str(out))
    ranks = [launcher.stdout.readline().split() for _ in range(2)]
    first, second = (int(pid) for pid, _ in ranks)
    assert [line for _, line in ranks] == ["held", "held"]
    try:
        launcher.kill()
        launcher.wait()
        assert f"is being written by PID {first} on" in refusal(out)
        again = start_python(LAUNCHING, "-c", HOLDING, str(out))
        assert "is being written by PID" in again.stdout.readline()
        os.kill(first, signal.SIGKILL)
        wait_for_end(first)
        hold(out)
    finally:
        for pid in (first, second):
            os.kill(pid, signal.SIGKILL) if Path(f"/proc/{pid}").exists() else None


def wait_for_end(pid: int) -> None:
    """Wait for an orphan: whoever adopted it may not bury it."""
    for _ in range(200):
        stat = Path(f"/proc/{pid}/stat")
        if not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z":
            return
        time.sleep(0.05)
    raise AssertionError(f"{pid} still runs")


def test_a_lock_file_that_was_left_behind_blocks_nobody(out: Path) -> None:
    out.parent.mkdir()
    lock_path(out).write_text("PID 7 on far.away since 2026-01-01 00:00 (python x.py)")
    lock = take(lock_path(out))
    assert lock is not None
    assert "by PID 7 on far.away since 2026-01-01 00:00 (python x.py); wait" in refusal(out)
    lock.release()
    hold(out)
    assert lock_path(out).read_text().startswith(f"PID {os.getpid()} on ")


@pytest.mark.parametrize("output", ["file/out", "file/deep/out"])
def test_an_impossible_output_is_an_error(output: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("content")
    with pytest.raises(UserError, match=r"can't be written \(.+\); choose another output"):
        hold(tmp_path / output)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_read_only_file_system_is_an_error(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out.parent.mkdir()
    only_read_from(out.parent, monkeypatch)
    with pytest.raises(UserError, match=rf"{out} can't be written \(Read-only file system: "):
        hold(out)


def test_a_volume_on_a_file_system_that_is_only_read_has_its_lock_within(out: Path, monkeypatch) -> None:
    out.mkdir(parents=True)
    only_read_from(out.parent, monkeypatch, but=out)
    hold(out)
    assert is_held(out / ".lock")
    release_outputs()
    assert not list(out.iterdir())


def only_read_from(folder: Path, monkeypatch: pytest.MonkeyPatch, but: Path | None = None) -> None:
    """Let no file be made in a folder, as on a file system that is mounted to be read."""
    opened = os.open

    def refuse(name: Any, flags: int, *mode: int) -> int:
        path = Path(os.fsdecode(name))
        if flags & os.O_CREAT and folder in path.parents and but not in path.parents:
            raise OSError(errno.EROFS, "Read-only file system", str(name))
        return opened(name, flags, *mode)

    monkeypatch.setattr(os, "open", refuse)


def test_a_full_disk_is_not_a_problem_of_the_output(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device", "lock")

    monkeypatch.setattr(os, "open", full)
    with pytest.raises(OSError, match="No space left"):
        hold(out)


@pytest.mark.parametrize("is_live", [False, True])
def test_another_users_lock_file_counts_only_while_it_is_held(is_live: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o777)
        path = lock_path(Path(folder, "out"))
        lock = take(path)
        if not is_live:
            lock.release()  # the file stays
        child = os.fork()
        if child == 0:
            if os.geteuid() == 0:
                os.seteuid(65534)
            try:
                hold(Path(folder, "out"))
            except UserError:
                os._exit(2)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == (2 if is_live else 0)
        lock.release()

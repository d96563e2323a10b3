from __future__ import annotations

import errno
import os
import subprocess
import sys

import pytest

from reflectune.core.errors import UserError, entry_point


def run(error: BaseException) -> None:
    @entry_point
    def main() -> None:
        raise error

    main()


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (UserError("no such split"), 2, "error: no such split"),
        (KeyboardInterrupt(), 130, "what was finished is kept"),
        (OSError(errno.ENOSPC, "full", "traces.jsonl"), errno.ENOSPC, "no space left on the disk"),
        (OSError(errno.EACCES, "denied", "runs/out"), 2, "error: runs/out: there is no permission to use it; change"),
        (OSError(errno.EROFS, "read-only", "/mnt/out"), 2, "error: /mnt/out: its file system can only be read; name"),
        (OSError(errno.ENOTDIR, "no", "a/b"), 2, "error: a/b: a file is where a folder is needed; move the file"),
        (OSError(errno.EISDIR, "no", "a/b"), 2, "error: a/b: a folder is where a file is needed; move the folder"),
        (OSError(errno.ENOENT, "no", "a/b"), 2, "error: a/b: there is no such file or folder; put it there"),
        (OSError(errno.EXDEV, "no", "partial", None, "a/b"), 2, "error: a/b: it is on another file system"),
        (OSError(errno.ENAMETOOLONG, "no", "a" * 300), 2, "the name is too long for the file system; choose"),
        (OSError(errno.EBUSY, "Device busy", b"a/b"), 2, "error: a/b: device busy; check the path"),
        (OSError(errno.EACCES, "Failed to open local file '/x/part.parquet'"), 2, "error: /x/part.parquet: there is"),
        (UserError("no answer of http://me:hid/den@host/v1?key=hidden"), 2, "http://***@host/v1?key=***"),
    ],
)
def test_a_users_mistake_is_one_line_and_a_status(
    error: BaseException, status: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        run(error)
    printed = capsys.readouterr().err
    assert caught.value.code == status
    assert said in printed
    assert printed.count("\n") == 1
    assert "hid" not in printed


@pytest.mark.parametrize(
    "error",
    [ValueError("a bug"), OSError(errno.EACCES, "denied"), OSError("a bug"), ConnectionResetError(104, "reset")],
)
def test_a_bug_keeps_its_traceback(error: Exception) -> None:
    with pytest.raises(type(error)):
        run(error)


def test_a_tracebacks_text_shows_no_password(capsys: pytest.CaptureFixture[str]) -> None:
    error = ValueError("bad reply of http://me:hid@den@host/v1")
    with pytest.raises(ValueError):
        run(error)

    sys.excepthook(type(error), error, error.__traceback__)

    printed = capsys.readouterr().err
    assert "Traceback" in printed
    assert "ValueError: bad reply of http://***@host/v1" in printed
    assert "hid@den" not in printed


LAUNCHED = """
import sys
import time
from importlib import import_module

import torch
from torch.distributed import HashStore, all_gather, all_reduce, group, init_process_group

from reflectune.core.errors import entry_point


class SlowToEnd:
    def __del__(self, sleep=time.sleep):
        sleep(1)


@entry_point
def main():
    init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    trainer = [group.WORLD]
    trainer.append(trainer)
    for name in ("nn.functional", "fsdp.sharded_grad_scaler", "optim.zero_redundancy_optimizer"):
        import_module(f"torch.distributed.{name}")
    sent, received = torch.ones(4_000_000), [torch.empty(4_000_000)]
    for _ in range(20):
        all_gather(received, sent, async_op=True)
        all_reduce(torch.ones(1), async_op=True)


main()
interpreter = SlowToEnd()
sys.setswitchinterval(1000)
end = time.monotonic() + 1
while time.monotonic() < end:  # holds Python's lock until the interpreter ends
    pass
"""


def test_threads_of_a_launch_end_with_the_entry_point() -> None:
    """One that still waits for Python's lock when the interpreter begins to end is killed, and the process aborts.

    The process group is referred to as in training: by a reference cycle, and by modules that libraries import late.
    """
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}

    ended = subprocess.run([sys.executable, "-c", LAUNCHED], capture_output=True, text=True, env=environment)

    assert ended.returncode == 0, ended.stderr[-2000:]

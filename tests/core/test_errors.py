from __future__ import annotations

import errno
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from reflectune.core.errors import UserError, entry_point

Start = Callable[[Sequence[str]], Any]


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
import ctypes
import sys
import time
from importlib import import_module

import torch
from torch.distributed import HashStore, all_gather, all_reduce, group, init_process_group

from reflectune.core.errors import UserError, entry_point


class SlowToEnd:
    def __del__(self, sleep=time.sleep):
        sleep(1)


@entry_point
def main():
    init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    trainer = [group.WORLD]
    trainer.append(trainer)
    for name in ("nn.functional", "fsdp.sharded_grad_scaler", "optim.zero_redundancy_optimizer"):
        sys.modules.pop(f"torch.distributed.{name}", None)
        import_module(f"torch.distributed.{name}")
    sent, received = torch.ones(4_000_000), [torch.empty(4_000_000)]
    for _ in range(20):
        all_gather(received, sent, async_op=True)
        all_reduce(torch.ones(1), async_op=True)
    if len(sys.argv) > 1:
        raise {"UserError": UserError, "OSError": lambda _: OSError(13, "no", "a/b"), "exit": sys.exit}[sys.argv[1]](3)


try:
    main()
except SystemExit as end:
    status = end.code
else:
    status = 0
sys.interpreter = SlowToEnd()
sys.setswitchinterval(1000)
ctypes.PyDLL(None).usleep(900_000)  # holds Python's lock until the interpreter ends
sys.exit(status)
"""


@pytest.mark.parametrize(("how", "status"), [("", 0), ("UserError", 2), ("OSError", 2), ("exit", 3)])
def test_threads_of_a_launch_end_with_the_entry_point(
    how: str, status: int, start_program: Start, tmp_path: Path
) -> None:
    """One that still waits for Python's lock when the interpreter begins to end is killed, and the process aborts.

    The process group is referred to as in training: by a reference cycle, and by modules that libraries import late.
    """
    script = tmp_path / "launched.py"
    script.write_text(LAUNCHED)

    program = start_program([str(script), *filter(None, [how])])

    assert program.wait() == status, program.stderr[-2000:]


ONE_OF_TWO = """
import atexit
import sys
import time

import torch
from torch import distributed

from reflectune.core.errors import UserError, entry_point
from reflectune.core.resumable import join_launch


@entry_point
def main():
    processes, _ = join_launch("cpu")
    processes.wait()
    doing = sys.argv[1].split(",")[processes.index]
    print(doing, flush=True)
    if doing == "wait":
        processes.wait()
    if doing == "compute":
        time.sleep(120)
    if doing == "fail within":
        began = distributed.all_reduce(torch.ones(1), async_op=True)
    raise UserError("`splits`: none of these")


atexit.register(lambda: print(distributed.is_initialized(), flush=True))
main()
"""


@pytest.mark.parametrize(
    ("doing", "said"),
    [
        (("fail", "fail"), "fail\nFalse\n"),  # a wrong value that both find once the group is there
        (("wait", "fail"), "fail\nFalse\n"),  # the other one is in a collective
        (("compute", "fail"), "fail\nFalse\n"),  # far from the next one
        (("compute", "fail within"), "fail within\n"),  # far from one that has begun, which never ends: cut off
    ],
)
def test_a_users_mistake_in_a_launch_ends_its_process_with_2(
    doing: tuple[str, str], said: str, start_processes: Callable[..., list[Any]], tmp_path: Path
) -> None:
    script = tmp_path / "one_of_two.py"
    script.write_text(ONE_OF_TWO)
    arguments = [str(script), ",".join(doing)]
    both = start_processes(arguments, arguments)
    failing = [program for program, does in zip(both, doing, strict=True) if "fail" in does]
    assert [program.wait(timeout=60) for program in failing] == [2] * len(failing)
    for program in failing:
        assert program.stdout == said
        assert "error: `splits`: none of these\n" in program.stderr
        assert "Traceback" not in program.stderr

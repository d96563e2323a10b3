import errno
import sys

import pytest

from reflectune.core.entry_point import entry_point
from reflectune.core.errors import UserError


def run(error: BaseException) -> None:
    @entry_point
    def main() -> None:
        raise error

    main()


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (UserError("no such split"), 2, "error: no such split"),
        (KeyboardInterrupt(), 130, "finished work is kept"),
        (OSError(errno.ENOSPC, "full", "traces.jsonl"), errno.ENOSPC, "no space left on the disk"),
        (OSError(errno.EDQUOT, "full"), errno.ENOSPC, "while writing the output folder; free some"),
        (RuntimeError("I/O error: No space left on device (os error 28)"), errno.ENOSPC, "while writing the output"),
        (RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 64 vs 0"), errno.ENOSPC, "no space"),
        (RuntimeError("unable to write to file </torch_7_2>: No space left on device (28)"), 2, "--shm-size`, or set"),
        (OSError(errno.EACCES, "Permission denied", "runs/out"), 2, "error: runs/out: Permission denied"),
        (OSError(errno.EXDEV, "Other device", "partial", None, "a/b"), 2, "error: a/b: Other device"),
        (OSError(errno.EBUSY, "Device busy", b"a/b"), 2, "error: a/b: Device busy"),
        (ModuleNotFoundError(name="trl.trainer"), 2, "trl.trainer is not installed: pip install 'reflectune[train]'"),
        (UserError("no answer of http://me:hidden@host/v1"), 2, "http://***@host/v1"),
    ],
)
def test_a_users_mistake_is_one_line_and_a_status(error, status, message, capsys) -> None:
    with pytest.raises(SystemExit) as caught:
        run(error)
    printed = capsys.readouterr().err
    assert caught.value.code == status
    assert message in printed
    assert printed.count("\n") == 1
    assert "hid" not in printed


def test_a_line_is_preceded_by_its_traceback_on_demand(capsys, monkeypatch) -> None:
    monkeypatch.setenv("REFLECTUNE_TRACEBACK", "1")
    error = UserError("cannot load the model of http://me:hidden@host")
    error.__cause__ = KeyError("num_layers")
    with pytest.raises(SystemExit):
        run(error)
    before, _, line = capsys.readouterr().err.strip().rpartition("\n")
    assert before.startswith("KeyError: 'num_layers'")
    assert "in main" in before
    assert line == "error: cannot load the model of http://***@host"
    assert "me:hidden" not in before


@pytest.mark.parametrize(
    "error",
    [
        ValueError("a bug"),
        RuntimeError("[enforce fail at inline_container.cc:257] . file not found: data.pkl"),
        OSError(errno.EACCES, "denied"),
        ImportError("x", name="trl"),
        ModuleNotFoundError(name="torch"),
        ConnectionResetError(104, "reset"),
    ],
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
import atexit
import sys

import torch
from torch.distributed import HashStore, all_gather, init_process_group

from reflectune.core.entry_point import entry_point
from reflectune.core.errors import UserError


@entry_point
def main():
    init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    sent, received = torch.ones(4_000_000), [torch.empty(4_000_000)]
    for _ in range(20):
        all_gather(received, sent, async_op=True)
    sys.stdout.write("unflushed, ")
    if len(sys.argv) > 1:
        raise {"UserError": UserError, "exit": SystemExit}[sys.argv[1]](*sys.argv[2:] or [3])


atexit.register(print, "called at the end")
main()
"""


LAST_WORDS = "finished by a different command"


@pytest.mark.parametrize(
    ("ending", "status"), [([], 0), (["UserError"], 2), (["exit"], 3), (["exit", LAST_WORDS], 1)], ids=str
)
def test_a_launch_ends_with_its_status_while_threads_of_gloo_run(ending, status, start_program, tmp_path) -> None:
    """A thread that waits for Python's lock when the interpreter begins to end would abort the process."""
    script = tmp_path / "launched.py"
    script.write_text(LAUNCHED)
    program = start_program([str(script), *ending])
    assert program.wait() == status, program.stderr[-2000:]
    assert program.stdout == "unflushed, called at the end\n"
    assert program.stderr.endswith(f"{LAST_WORDS}\n") is (status == 1)


ONE_OF_TWO = """
import atexit
import sys
import time

import torch
from torch import distributed

from reflectune.core.entry_point import entry_point
from reflectune.core.errors import UserError
from reflectune.core.launching import launch_processes


@entry_point
def main():
    processes = launch_processes()
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


main()
"""


@pytest.mark.parametrize(
    "doing",
    [
        ("fail", "fail"),  # a wrong value that both find once the group is there
        ("wait", "fail"),  # the other one is in a collective
        ("compute", "fail"),  # far from the next one
        ("compute", "fail within"),  # far from one that has begun, which never ends
    ],
)
def test_a_users_mistake_in_a_launch_ends_its_process_with_2(doing, start_processes, tmp_path) -> None:
    script = tmp_path / "one_of_two.py"
    script.write_text(ONE_OF_TWO)
    arguments = [str(script), ",".join(doing)]
    both = start_processes(arguments, arguments)
    failing = [program for program, does in zip(both, doing, strict=True) if "fail" in does]
    assert [program.wait(timeout=60) for program in failing] == [2] * len(failing)
    for program in failing:
        assert "error: `splits`: none of these\n" in program.stderr
        assert "Traceback" not in program.stderr

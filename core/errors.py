"""The one exception a user is meant to read, and how an entry point shows it."""

from __future__ import annotations

import errno
import functools
import gc
import os
import re
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from types import FunctionType, TracebackType
from typing import Final

from reflectune.core.addresses import conceal_environment, redacted
from reflectune.core.launching import end_with_launcher
from reflectune.core.progress import quiet_libraries


class UserError(Exception):
    """A mistake that the user can mend. Its message says what was found, where, and what to do.

    An entry point prints it as `error: …` and exits with status 2, without a traceback.
    """


def entry_point(main: Callable[[], None]) -> Callable[[], None]:
    """Wrap an entry script's `main` so that a user's mistake, a file that can't be used or Ctrl-C ends in a clear line.

    However `main` ends, but for a bug, the process group of its launch is destroyed, if there is one, and its threads
    have ended before the interpreter does; one whose launcher is gone ends at once. In a log the libraries' progress
    bars are hidden. What `main` holds of `core.outputs` is released in any case.

    Exit status: 2 for a `UserError` and for a path that can't be read or written, 28 for a full disk, 130 for Ctrl-C.
    Anything else is our own bug and keeps its traceback. Passwords and keys are taken out of both.
    """

    @functools.wraps(main)
    def run() -> None:
        from reflectune.core.outputs import release_outputs  # it imports this module

        quiet_libraries()
        end_with_launcher()
        sys.excepthook = _show_traceback
        conceal_environment(os.environ)
        try:
            main()
            _destroy_process_group()
            return
        except SystemExit as end:
            status = end.code
        except UserError as error:
            status = _say(f"error: {error}", 2)
        except KeyboardInterrupt:
            status = _say("stopped: what was finished is kept; run the same command again to go on", 130)
        except OSError as error:
            if (told := told_of(error)) is None:
                raise
            status = _say(f"error: {told}", errno.ENOSPC if error.errno in _FULL else 2)
        finally:
            release_outputs()
        _leave_process_group(status)  # here nothing refers to the error any more, nor to what its frames hold
        sys.exit(status)

    return run


def told_of(error: OSError) -> str | None:
    """What a user reads of an error of the file system: what is wrong, with which path, and what to do.

    None if it isn't the file system's, or names no path: then it is our own bug.
    """
    if error.errno in _FULL:
        where = _shown_path(error) or "the output folder"
        return (
            f"no space left on the disk while writing {where}; free some and run the same command again: what was "
            "finished is kept"
        )
    path = _shown_path(error)
    if path is None or error.errno is None:
        return None
    problem, fix = _PROBLEMS.get(error.errno, ((error.strerror or "it can't be used").lower(), "check the path"))
    return f"{path}: {problem}; {fix}"


def _shown_path(error: OSError) -> str | None:
    """The path that an error is about; pyarrow and others put it into the message, in quotes."""
    if isinstance(error.filename, (str, bytes)):
        return os.fsdecode(error.filename2 or error.filename)
    quoted = re.search(r"'([^']*/[^']*)'", str(error.strerror or ""))
    return quoted[1] if quoted else None


_PATIENCE: Final = 5.0
"""Seconds that the process group's threads have to end after an error."""
_FULL: Final = (errno.ENOSPC, errno.EDQUOT)
_ELSEWHERE: Final = "name another place in the config or on the command line"
_PERMISSION: Final = ("there is no permission to use it", f"change that (`ls -ld` shows whose it is), or {_ELSEWHERE}")
_PROBLEMS: Final[Mapping[int, tuple[str, str]]] = {
    errno.EACCES: _PERMISSION,
    errno.EPERM: _PERMISSION,
    errno.EROFS: ("its file system can only be read", _ELSEWHERE),
    errno.ENOENT: ("there is no such file or folder", f"put it there, or {_ELSEWHERE}"),
    errno.ENOTDIR: ("a file is where a folder is needed", f"move the file, or {_ELSEWHERE}"),
    errno.EISDIR: ("a folder is where a file is needed", f"move the folder, or {_ELSEWHERE}"),
    errno.EEXIST: ("something else is there", f"move it, or {_ELSEWHERE}"),
    errno.ENOTEMPTY: ("something else is in the folder", f"move it, or {_ELSEWHERE}"),
    errno.ENAMETOOLONG: ("the name is too long for the file system", "choose a shorter one"),
    errno.ELOOP: ("its links lead in a circle", _ELSEWHERE),
    errno.EFBIG: ("the file is too large for the file system or `ulimit -f`", _ELSEWHERE),
    errno.EMFILE: ("too many files are open", "raise the limit: `ulimit -n 65536`"),
    errno.ENFILE: ("too many files are open on this machine", "close some programs"),
    errno.EIO: ("the disk can't be read or written", "check it, or copy the folder to another one"),
    errno.EXDEV: ("it is on another file system than what is renamed to it", _ELSEWHERE),
}
"""What is wrong and what to do, by the number of an error that names a path."""


def _destroy_process_group() -> None:
    """Destroy the process group, if there is one, and join its threads.

    gloo's threads take Python's lock to let go of a finished collective's tensors. One that is waiting for the lock
    when the interpreter begins to end is killed within a destructor, and the process aborts: "terminate called without
    an active exception" (https://github.com/pytorch/pytorch/issues/190489; all but the last line here can go once that
    is closed). Only the group's destructor joins them, so nothing may refer to the group any more, neither a trainer
    that lies in a reference cycle nor a default argument.
    """
    distributed = sys.modules.get("torch.distributed")  # not imported: nothing was opened
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        _drop_from_defaults(distributed.group.WORLD)
        gc.collect()
        distributed.destroy_process_group()


def _leave_process_group(status: str | int | None) -> None:
    """As `_destroy_process_group`, while the other processes may be in a collective, or far from one.

    gloo's threads end with what they have begun. What the others don't take part in would never end: then this process
    ends without them, with its status. NCCL's group is left as it is: its destruction may wait for the others.
    """
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return
    backends = {pair.partition(":")[2] for pair in distributed.get_backend_config().split(",")}  # cpu:gloo,cuda:nccl
    if backends != {"gloo"}:
        return
    thread = threading.Thread(target=_destroy_process_group, daemon=True)
    thread.start()
    thread.join(_PATIENCE)
    if thread.is_alive():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status if isinstance(status, int) else int(status is not None))


def _drop_from_defaults(group: object) -> None:
    """Put None, which means the same, for a process group that is a function's default argument.

    torch 2.13 and DeepSpeed 0.19 have such functions, in modules that are often imported while the group is open.
    """
    for function in gc.get_objects():
        if type(function) is FunctionType and any(value is group for value in function.__defaults__ or ()):
            function.__defaults__ = tuple(None if value is group else value for value in function.__defaults__ or ())


def _say(message: str, status: int) -> int:
    print(redacted(message), file=sys.stderr, flush=True)
    return status


def _show_traceback(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """As Python shows an error that nobody caught, without the secrets in it."""
    print(redacted("".join(traceback.format_exception(kind, error, trace))), file=sys.stderr, end="", flush=True)

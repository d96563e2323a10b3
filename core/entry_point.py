"""The wrapper of every command's `main`: it prints errors, releases outputs and ends launches."""

from __future__ import annotations

import atexit
import errno
import functools
import gc
import os
import select
import signal
import sys
import traceback
from collections.abc import Callable
from types import TracebackType
from typing import Final

from reflectune.core.errors import DISK_FULL, UserError
from reflectune.core.extras import install_line
from reflectune.core.launching import joined_launch
from reflectune.core.outputs import release_outputs
from reflectune.core.progress import quiet_libraries
from reflectune.core.secrets import conceal_named, redacted


def entry_point(main: Callable[[], None]) -> Callable[[], None]:
    """Wrap a script's `main`: print user errors, unusable paths and Ctrl-C in one line, and release outputs.

    Exit status: 2 for a `UserError`, an extra that is not installed, and a path that can't be read or written, 28 for a
    full disk, 130 for Ctrl-C, 141 without a line if nobody reads the output any more.
    Any other exception is a bug and keeps its traceback. Secrets are removed from both.
    The environment variable `REFLECTUNE_TRACEBACK` shows the traceback before the line, for bug reports.
    """

    @functools.wraps(main)
    def run() -> None:
        quiet_libraries()
        atexit.register(gc.freeze)  # else Python's last collection takes seconds once torch is imported
        sys.excepthook = _show_traceback
        conceal_named(os.environ)
        try:
            main()
            sys.stdout.flush()
            _end_launch(0)
            return
        except SystemExit as end:
            status = _say(end.code, 1) if isinstance(end.code, str) else end.code
        except UserError as error:
            status = _say(f"error: {error}", 2)
        except ModuleNotFoundError as error:
            if not (line := install_line(error.name or "")):
                raise
            status = _say(f"error: {error.name} is not installed: {line}", 2)
        except KeyboardInterrupt:
            status = _say("stopped: finished work is kept; run the same command again to go on", 130)
        except BrokenPipeError:
            if not _reader_is_gone():
                raise
            status = 128 + signal.SIGPIPE  # as the shell counts a program that a closed pipe ends
        except OSError as error:
            if (problem := _path_problem(error)) is None:
                raise
            status = _say(f"error: {problem}", errno.ENOSPC if error.errno in DISK_FULL else 2)
        except Exception as error:
            if _SHARED_MEMORY in str(error):
                status = _say(f"error: {_SMALL_SHM}", 2)
            elif any(words in str(error).lower() for words in _FULL):
                status = _say(f"error: {_NO_SPACE.format('the output folder')} ({error})", errno.ENOSPC)
            else:
                raise
        finally:
            release_outputs()
        _end_launch(status)
        sys.exit(status)

    return run


_NO_SPACE: Final = (
    "no space left on the disk while writing {}; free some and run the same command again: finished work is kept"
)
_FULL: Final = ("os error 28", "os error 122", "no space left on device", "disk quota exceeded", "unexpected pos ")
"""Words of safetensors, tokenizers and torch's archives about a disk or a quota that filled as they wrote."""
_SHARED_MEMORY: Final = "unable to write to file </torch_"
"""Words of PyTorch about a full `/dev/shm`, which it doesn't name."""
_SMALL_SHM: Final = (
    "/dev/shm is full, through which `dataloader_workers` pass batches; start the container with a larger "
    "`--shm-size`, or set `dataloader_workers: 0`"
)


def _reader_is_gone() -> bool:
    """Return True if nobody reads the output any more, as after `| head`; then the rest of it is dropped."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    is_gone = any(event & select.POLLERR for _, event in poll.poll(0))
    if is_gone:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return is_gone


def _path_problem(error: OSError) -> str | None:
    """Describe an error of the file system to the user; None if it names no path, and so is a bug."""
    path = error.filename2 or error.filename
    if error.errno in DISK_FULL:
        written = os.fsdecode(path) if isinstance(path, (str, bytes)) else "the output folder"
        return _NO_SPACE.format(written)
    return f"{os.fsdecode(path)}: {error.strerror}" if isinstance(path, (str, bytes)) else None


def _end_launch(status: int | None) -> None:
    """Leave the process group of a launch, if there is one.

    gloo's threads abort the process if they wait for Python's lock while the interpreter ends
    (https://github.com/pytorch/pytorch/issues/190489). Processes wait for each other over gloo on GPUs too, so each
    ends here, after its exit functions. Can go once that issue is closed.
    """
    if (distributed := joined_launch()) is None:
        return
    if "gloo" not in distributed.get_backend_config() and not status:
        distributed.destroy_process_group()  # NCCL warns without it
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status or 0)


def _say(message: str, status: int) -> int:
    """Print a one-line error, and return the status."""
    if os.environ.get("REFLECTUNE_TRACEBACK"):
        print(redacted(traceback.format_exc()), file=sys.stderr)
    print(redacted(message), file=sys.stderr, flush=True)
    return status


def _show_traceback(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print an uncaught error as Python does, without the secrets in it."""
    print(redacted("".join(traceback.format_exception(kind, error, trace))), file=sys.stderr, end="", flush=True)

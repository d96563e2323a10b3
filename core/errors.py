"""The one exception a user is meant to read, and how an entry point shows it."""

from __future__ import annotations

import errno
import functools
import gc
import sys
from collections.abc import Callable
from types import FunctionType

from reflectune.core.progress import quiet_libraries


class UserError(Exception):
    """A mistake that the user can mend. Its message says what was found, where, and what to do.

    An entry point prints it as `error: …` and exits with status 2, without a traceback.
    """


def entry_point(main: Callable[[], None]) -> Callable[[], None]:
    """Wrap an entry script's `main` so that a user's mistake, a full disk or Ctrl-C ends in one clear line.

    After a `main` that ends well the process group of its launch is destroyed, if there is one, and its threads have
    ended before the interpreter does. In a log the libraries' progress bars are hidden. What `main` holds of
    `core.outputs` is released in any case.

    Exit status: 2 for a `UserError`, 28 for a full disk, 130 for Ctrl-C. Anything else is our own bug and keeps its
    traceback.
    """

    @functools.wraps(main)
    def run() -> None:
        from reflectune.core.outputs import release_outputs  # it imports this module

        quiet_libraries()
        try:
            main()
            _destroy_process_group()
        except UserError as error:
            sys.exit(_say(f"error: {error}", 2))
        except KeyboardInterrupt:
            sys.exit(_say("stopped: what was finished is kept; run the same command again to go on", 130))
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            where = error.filename or "the output folder"
            message = (
                f"error: no space left on the disk while writing {where}; free some and run the same command again"
            )
            sys.exit(_say(f"{message}: what was finished is kept", errno.ENOSPC))
        finally:
            release_outputs()

    return run


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


def _drop_from_defaults(group: object) -> None:
    """Put None, which means the same, for a process group that is a function's default argument.

    torch 2.13 and DeepSpeed 0.19 have such functions, in modules that are often imported while the group is open.
    """
    for function in gc.get_objects():
        if type(function) is FunctionType and any(value is group for value in function.__defaults__ or ()):
            function.__defaults__ = tuple(None if value is group else value for value in function.__defaults__ or ())


def _say(message: str, status: int) -> int:
    print(message, file=sys.stderr, flush=True)
    return status

"""The one exception a user is meant to read, and how an entry point shows it."""

from __future__ import annotations

import errno
import functools
import sys
from collections.abc import Callable

from reflectune.core.progress import quiet_libraries


class UserError(Exception):
    """A mistake that the user can mend. Its message says what was found, where, and what to do.

    An entry point prints it as `error: …` and exits with status 2, without a traceback.
    """


def entry_point(main: Callable[[], None]) -> Callable[[], None]:
    """Wrap an entry script's `main` so that a user's mistake, a full disk or Ctrl-C ends in one clear line.

    In a log the libraries' progress bars are hidden. A `main` that ends well closes the connections to the other processes of its launch, if it had any.

    Exit status: 2 for a `UserError`, 28 for a full disk, 130 for Ctrl-C. Anything else is our own bug and keeps its
    traceback.
    """

    @functools.wraps(main)
    def run() -> None:
        quiet_libraries()
        try:
            main()
            _close_connections()
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

    return run


def _close_connections() -> None:
    distributed = sys.modules.get("torch.distributed")  # not imported: nothing was opened
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        distributed.destroy_process_group()


def _say(message: str, status: int) -> int:
    print(message, file=sys.stderr, flush=True)
    return status

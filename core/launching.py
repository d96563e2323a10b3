"""Ends a process whose launcher is gone: nobody would see it, stop it or start its peers again."""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import Final

_POLL: Final = 1.0
"""Seconds between two looks."""


def end_with_launcher() -> None:
    """Of torch's launcher, which `accelerate launch` takes for several processes: watch it, and end when it is gone.

    It starts every process again or ends all; without it, one whose peer died waits for it for half an hour and holds
    the output so long. What was finished is kept, and the same command goes on.
    """
    if "TORCHELASTIC_RUN_ID" in os.environ:
        threading.Thread(target=_watch, args=(os.getppid(),), daemon=True).start()


def _watch(launcher: int) -> None:
    while os.getppid() == launcher:  # a process whose parent ended has another one
        time.sleep(_POLL)
    print(
        f"error: the launcher (PID {launcher}) is gone; run the same command again to go on",
        file=sys.stderr,
        flush=True,
    )
    os._exit(1)

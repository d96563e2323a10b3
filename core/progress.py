"""Progress bars and durations."""

from __future__ import annotations

import logging
import os
import sys
import time
import warnings
from typing import Any

from tqdm import tqdm

SECONDS = 30.0
"""Minimum time between two updates of a bar in a log."""


def progress_bar(*args: Any, **kwargs: Any) -> tqdm:
    """Make a tqdm bar with these arguments. In a log it is updated every 30 seconds, and short work shows none.

    Example:
        >>> with progress_bar(total=10, desc="probing", unit="question") as bar:
        ...     bar.update(3)
    """
    if (kwargs.get("file") or sys.stderr).isatty():
        return tqdm(*args, **kwargs)
    return _LogBar(*args, **kwargs | {"mininterval": SECONDS, "maxinterval": SECONDS, "delay": SECONDS})


class _LogBar(tqdm):
    """A bar in a log, which other output can't erase and doesn't redraw."""

    def clear(self, nolock: bool = False) -> None:
        pass

    def refresh(self, nolock: bool = False, lock_args: Any = None) -> None:
        if not self.disable and time.time() - self.last_print_t >= self.mininterval:
            super().refresh(nolock, lock_args)


def quiet_libraries() -> None:
    """Hide the bars of transformers and the Hub in a log, and five notices of libraries that no user can act on."""
    # PEFT 0.21 reads a property that transformers 5.23 has renamed; can go with a PEFT that reads the new one
    warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated", FutureWarning)
    # accelerate 1.15 gives DDP the name of before torch 2.13; can go with one that gives `forward_sync_buffers`
    warnings.filterwarnings("ignore", "`broadcast_buffers` is deprecated", FutureWarning)
    warnings.filterwarnings("ignore", "You are using 'rollout_func'", UserWarning)  # TRL: experimental
    logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel(logging.ERROR)
    logging.getLogger("DeepSpeed").addFilter(_says_more_than_cpu)
    if sys.stderr.isatty():
        return
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")  # for what is imported later
    transformers_logging = sys.modules.get("transformers.utils.logging")
    if transformers_logging is not None:
        transformers_logging.disable_progress_bar()


def _says_more_than_cpu(record: logging.LogRecord) -> bool:
    return not record.getMessage().startswith("Setting accelerator to CPU")


def duration(seconds: float) -> str:
    """Return a duration in words, to two units: `3 h 20 min`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    units = [(days, "d"), (hours, "h"), (minutes, "min"), (rest, "s")]
    first = next((i for i, (count, _) in enumerate(units) if count), len(units) - 1)
    return " ".join(f"{count} {unit}" for count, unit in units[first : first + 2] if count) or "under 1 s"

"""Progress bars: on a terminal as tqdm draws them; in a log, whole lines, one at most every 30 seconds. Durations."""

from __future__ import annotations

import logging
import os
import sys
import time
from typing import Any

from tqdm import tqdm

SECONDS = 30.0
"""Least time between two lines of a bar that is no terminal's."""


def progress_bar(*args: Any, **kwargs: Any) -> tqdm:
    """A bar of tqdm, with its arguments; where its output is no terminal, one that writes lines.

    Such a bar writes its first line after 30 seconds, so that short work writes none, and at its end one more if it
    wrote any and `leave` is true.

    Example:
        >>> with progress_bar(total=10, desc="probing", unit="question") as bar:
        ...     bar.update(3)
    """
    stream = kwargs.get("file") or sys.stderr
    return (tqdm if stream.isatty() else _LineBar)(*args, **kwargs)


def quiet_libraries() -> None:
    """Hide the bars of transformers and of the Hub's client (loading, downloading) if nobody watches a terminal.

    Two notices of libraries that a command loads and doesn't use on a CPU are always hidden: bitsandbytes' of a kernel
    that could be faster, and DeepSpeed's that it found no GPU.
    """
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
    """A duration in words, to two units: `3 h 20 min`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    units = [(days, "d"), (hours, "h"), (minutes, "min"), (rest, "s")]
    first = next((i for i, (count, _) in enumerate(units) if count), len(units) - 1)
    return " ".join(f"{count} {unit}" for count, unit in units[first : first + 2] if count) or "under 1 s"


class _LineBar(tqdm):
    """A bar that writes lines: nothing in a log can be drawn over."""

    disable: bool

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._last_line, self._lines = time.monotonic(), 0  # the base class draws while it is made
        super().__init__(*args, **kwargs)

    def display(self, msg: str | None = None, pos: int | None = None) -> bool:
        """Write a line if the last one is old enough; whatever asks for one."""
        if time.monotonic() - self._last_line < SECONDS:
            return False
        self._write_line()
        return True

    def clear(self, nolock: bool = False) -> None:
        """Nothing is cleared: what was written stays."""

    def close(self) -> None:
        """End; the last line says how far it came."""
        if self.disable:
            return
        if self._lines and self.leave is not False:
            self._write_line()
        self.disable = True
        self._decr_instances(self)

    def _write_line(self) -> None:
        self._last_line, self._lines = time.monotonic(), self._lines + 1
        self.fp.write(f"{self}\n")
        self.fp.flush()

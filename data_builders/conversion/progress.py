"""A bar over the bytes of a step's source files, with the number of rows: what a stream has for an ETA."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tqdm import tqdm

from reflectune.core.progress import progress_bar
from reflectune.data_builders.readers.base import Meter, count_bytes


@dataclass
class Progress:
    """One step's progress; `advance` after every batch."""

    bar: tqdm
    meter: Meter
    rows: int = 0

    def advance(self, rows: int, left_out: int) -> None:
        """Some rows more are done; `left_out` is the number of bad rows so far."""
        self.rows += rows
        self.bar.set_postfix_str(
            f"{self.rows:,} rows" + (f", {left_out:,} left out" if left_out else ""), refresh=False
        )
        self.bar.update(min(self.meter.bytes, self.bar.total or self.meter.bytes) - self.bar.n)


@contextmanager
def progress(step: str, total_bytes: int) -> Iterator[Progress]:
    """A bar for one step, whose sources have `total_bytes` on the disk (0 if nobody knows)."""
    with (
        count_bytes() as meter,
        progress_bar(
            desc=step, total=total_bytes or None, unit="B", unit_scale=True, unit_divisor=1024, mininterval=0.5
        ) as bar,
    ):
        yield Progress(bar, meter)

"""Source files of a data set: list them, detect changes, and show the progress of reading."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

from reflectune.core.errors import UserError
from reflectune.core.hashing import file_fingerprint
from reflectune.core.paths import OutsideRoot, resolve_below
from reflectune.core.progress import progress_bar
from reflectune.data_builders.readers.files import Meter, count_bytes, visible


def list_files(paths: Iterable[Path]) -> list[Path]:
    """Return the files among `paths` and the visible ones below the folders among them, sorted.

    Links that lead out of their folder are left out.
    """
    files: set[Path] = set()
    for path in paths:
        files |= set(_files_below(path)) if path.is_dir() else {path}
    return sorted(files)


def _files_below(folder: Path) -> Iterator[Path]:
    for file in visible(folder, folder.rglob("*")):
        try:
            if resolve_below(file.absolute(), folder):
                yield file
        except OutsideRoot:
            continue


def stat_files(files: Iterable[Path]) -> list[dict[str, Any]]:
    """Return path, size and modification time of each file."""
    stats = [(file, file.stat()) for file in files]
    return [{"path": str(file), "bytes": stat.st_size, "mtime_ns": stat.st_mtime_ns} for file, stat in stats]


def with_fingerprints(sources: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the sources with a hash of each file's content."""
    return [{**source, "fingerprint": file_fingerprint(source["path"])} for source in sources]


def check_unchanged(sources: Iterable[dict[str, Any]], since: str) -> None:
    """Raise UserError if a source is missing or has changed.

    A file of the same size with a different time is compared by its hash, since it may be a copy.

    Args:
        sources: Sources of the manifest or of `stat_files`.
        since: The time of their listing, for the error.
    """
    for source in sources:
        path = Path(source["path"])
        if not path.is_file():
            raise UserError(f"{path} is gone since {since}; put it back, or choose another `output`")
        stat = path.stat()
        same = stat.st_size == source["bytes"]
        if same and stat.st_mtime_ns != source["mtime_ns"]:
            same = file_fingerprint(path) == source.get("fingerprint")
        if not same:
            raise UserError(
                f"{path} has changed since {since} ({source['bytes']:,} bytes then, {stat.st_size:,} now); "
                "choose another `output`, or delete this one to convert again"
            )


@dataclass
class StepProgress:
    """The progress of a step; `advance` after every batch."""

    bar: tqdm
    meter: Meter
    rows: int = 0

    def advance(self, rows: int, left_out: int) -> None:
        """Add rows; `left_out` is the number of bad rows so far."""
        self.rows += rows
        text = f"{self.rows:,} rows" + (f", {left_out:,} left out" if left_out else "")
        self.bar.set_postfix_str(text, refresh=False)
        self.bar.update(min(self.meter.bytes, self.bar.total or self.meter.bytes) - self.bar.n)


@contextmanager
def progress(step: str, total_bytes: int) -> Iterator[StepProgress]:
    """Show a bar for a step whose sources have `total_bytes` on the disk (0 if unknown)."""
    units: dict[str, Any] = {"unit": "B", "unit_scale": True, "unit_divisor": 1024}
    with count_bytes() as meter, progress_bar(desc=step, total=total_bytes or None, mininterval=0.5, **units) as bar:
        yield StepProgress(bar, meter)

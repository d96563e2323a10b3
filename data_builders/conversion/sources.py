"""A data set's source files: what they are, whether they are still the same, and how far a step has read them."""

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
from reflectune.data_builders.readers.files import Meter, count_bytes


def list_files(paths: Iterable[Path]) -> list[Path]:
    """The files among `paths` and in the folders among them, each once, by path.

    Links that lead out of such a folder are left out: no reader follows them.
    """
    files: set[Path] = set()
    for path in paths:
        files |= set(_files_below(path)) if path.is_dir() else {path}
    return sorted(files)


def _files_below(folder: Path) -> Iterator[Path]:
    for file in folder.rglob("*"):
        try:
            if file.is_file() and resolve_below(file.absolute(), folder):
                yield file
        except OutsideRoot:
            continue


def stat_files(files: Iterable[Path]) -> list[dict[str, Any]]:
    """Path, size and time of change of each file."""
    stats = [(file, file.stat()) for file in files]
    return [{"path": str(file), "bytes": stat.st_size, "mtime_ns": stat.st_mtime_ns} for file, stat in stats]


def with_fingerprints(sources: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The sources with a hash of each one's content; reads them all."""
    return [{**source, "fingerprint": file_fingerprint(source["path"])} for source in sources]


def check_unchanged(sources: Iterable[dict[str, Any]], since: str) -> None:
    """Refuse sources that are not what they were.

    A file of another size has changed; one of another time is hashed, where its hash is known, since a copy is not a
    change.

    Args:
        sources: As the manifest or `stat_files` has them.
        since: When they were listed, for the message.

    Raises:
        UserError: One is gone or has changed.
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
                "choose another `output`, or delete this one to convert anew"
            )


@dataclass
class StepProgress:
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
def progress(step: str, total_bytes: int) -> Iterator[StepProgress]:
    """A bar for one step, whose sources have `total_bytes` on the disk (0 if nobody knows)."""
    with (
        count_bytes() as meter,
        progress_bar(
            desc=step, total=total_bytes or None, unit="B", unit_scale=True, unit_divisor=1024, mininterval=0.5
        ) as bar,
    ):
        yield StepProgress(bar, meter)

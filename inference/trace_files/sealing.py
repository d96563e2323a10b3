"""Logs of traces that are sealed when they grow too long: their rows become a pair of Parquet files."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from reflectune.core.durable import RowLog, read_rows
from reflectune.core.resumable import Logs, Row
from reflectune.inference.trace_files.layout import KEY, is_questions, passages_path, read_column, write_traces


@dataclass(frozen=True)
class SealingLogs(Logs):
    """Logs `<name>.<process>.jsonl` with sealed files `<name>.<process>-<number>.parquet`; see `Logs`.

    A run that is killed while sealing has the rows in the log, or in both; either is read correctly.

    Attributes:
        most_bytes: Maximum size of a log; None for no maximum.
    """

    most_bytes: int | None = None

    def open(self, process: int = 0) -> RowLog:
        """Open the log of one process to append to."""
        if self.most_bytes is None:
            return super().open(process)
        return _SealingLog(self.folder / self.pattern.replace("*", str(process)), self.fingerprint, self.most_bytes)

    @property
    def stem(self) -> str:
        """Common prefix of the names of sealed files; `*` is the process's index."""
        return self.pattern.removesuffix(".jsonl")

    def sealed(self) -> list[Path]:
        """Return the sealed files of questions, in the order of sealing for each process."""
        return sealed_files(self.folder, self.stem)

    def remove(self) -> None:
        """Delete all of them, after their rows are merged."""
        for path in self.sealed():
            path.unlink()
        for path in self.folder.glob(f"{self.stem}-*.parquet"):
            path.unlink()  # passages, after all questions that refer to them
        super().remove()


def sealed_files(folder: Path, stem: str) -> list[Path]:
    """Return the sealed files of a stem, in the order of sealing."""
    return sorted(filter(is_questions, folder.glob(f"{stem}-*.parquet")))


def seal(log: Path, stem: Path, fingerprint: str, known: np.ndarray) -> np.ndarray:
    """Write a log's rows as a new pair of Parquet files.

    Args:
        log: The log, or a merged file of the same format.
        stem: Path without number and suffix.
        fingerprint: Hash of everything that determines a trace.
        known: Sorted keys of passages that an earlier file of the stem has.

    Returns:
        The sorted union of `known` and the keys of the log's passages.
    """
    number = len(list(stem.parent.glob(f"{stem.name}-*.parquet")))  # of either kind, so that none is ever replaced
    return write_traces(stem.with_name(f"{stem.name}-{number:06d}.parquet"), fingerprint, read_rows(log), known)


class _SealingLog(RowLog):
    """A log that is sealed whenever it exceeds its maximum size."""

    def __init__(self, path: Path, fingerprint: str, most_bytes: int) -> None:
        super().__init__(path, fingerprint)
        self._fingerprint, self._most_bytes = fingerprint, most_bytes
        self._stem = path.with_suffix("")

    def append(self, row_id: str, row: Row, *, sync: bool = True) -> None:
        """Append a row, and seal the log if it is too long; see `RowLog`."""
        super().append(row_id, row, sync=sync)
        if self.size > self._most_bytes:
            self._known = seal(self.path, self._stem, self._fingerprint, self._known)
            self.clear()

    @functools.cached_property
    def _known(self) -> np.ndarray:
        """Keys of the passages in this log's sealed files."""
        files = sealed_files(self._stem.parent, self._stem.name)
        keys = [read_column(passages_path(file), KEY, self._fingerprint).to_numpy() for file in files]
        return np.unique(np.concatenate([np.empty(0, np.int64), *keys]))

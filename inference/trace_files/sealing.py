"""Logs of traces that are sealed when they grow too long: their rows become a pair of Parquet files beside them."""

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
    """As `Logs`: `<name>.<process>.jsonl`, beside which a sealed one is `<name>.<process>-<number>.parquet`.

    A run that is killed while it seals has the rows in the log still, or in both; either is read well.

    Attributes:
        most_bytes: How long a log may grow; None: as long as it likes.
    """

    most_bytes: int | None = None

    def open(self, process: int = 0) -> RowLog:
        """The log of one process, to append to."""
        if self.most_bytes is None:
            return super().open(process)
        return _SealingLog(self.folder / self.pattern.replace("*", str(process)), self.fingerprint, self.most_bytes)

    @property
    def stem(self) -> str:
        """What the names of sealed files begin with; `*` stands for a process's number."""
        return self.pattern.removesuffix(".jsonl")

    def sealed(self) -> list[Path]:
        """The files of questions that logs became, in the order of sealing for each process."""
        return sealed_beside(self.folder, self.stem)

    def remove(self) -> None:
        """Delete all of them, once their rows are kept elsewhere."""
        for path in self.sealed():
            path.unlink()
        for path in self.folder.glob(f"{self.stem}-*.parquet"):
            path.unlink()  # passages, after all questions that refer to them
        super().remove()


def sealed_beside(folder: Path, stem: str) -> list[Path]:
    """The files of questions that the logs of a stem became, in the order of sealing."""
    return sorted(filter(is_questions, folder.glob(f"{stem}-*.parquet")))


def seal(log: Path, stem: Path, fingerprint: str, known: np.ndarray) -> np.ndarray:
    """Write a log's rows as a new pair of Parquet files.

    Args:
        log: The log, or a merged file of the same form.
        stem: Where to, but for the number and what follows it.
        fingerprint: Hash of everything that determines a trace.
        known: Sorted keys of passages whose text lies in an earlier file of the stem.

    Returns:
        `known` and the keys of the log's passages, sorted.
    """
    number = len(list(stem.parent.glob(f"{stem.name}-*.parquet")))  # of either kind, so that none is ever replaced
    return write_traces(stem.with_name(f"{stem.name}-{number:06d}.parquet"), fingerprint, read_rows(log), known)


class _SealingLog(RowLog):
    """A log that is sealed whenever it is longer than it may be."""

    def __init__(self, path: Path, fingerprint: str, most_bytes: int) -> None:
        super().__init__(path, fingerprint)
        self._fingerprint, self._most_bytes = fingerprint, most_bytes
        self._stem = path.with_suffix("")

    def append(self, row_id: str, row: Row, *, sync: bool = True) -> None:
        """See `RowLog`; a log that is long enough is sealed."""
        super().append(row_id, row, sync=sync)
        if self.size > self._most_bytes:
            self._known = seal(self.path, self._stem, self._fingerprint, self._known)
            self.clear()

    @functools.cached_property
    def _known(self) -> np.ndarray:
        """Keys of the passages that this log's files have."""
        files = sealed_beside(self._stem.parent, self._stem.name)
        keys = [read_column(passages_path(file), KEY, self._fingerprint).to_numpy() for file in files]
        return np.unique(np.concatenate([np.empty(0, np.int64), *keys]))

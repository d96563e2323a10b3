"""Storage of traces while a pipeline answers: logged row by row, sealed into Parquet when large, then merged."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import numpy as np

from reflectune.core.durable import RowLog, read_rows
from reflectune.core.launching import Processes
from reflectune.core.resumable import Logs, Row, drop_rows, run_batches, unique_ids
from reflectune.core.types import Question
from reflectune.inference.trace import Trace, from_row
from reflectune.inference.trace_files.columns import TraceColumns
from reflectune.inference.trace_files.layout import KEY, is_questions, passages_path, read_column, write_traces
from reflectune.inference.trace_files.merging import drop_traces, merge_lines, merge_tables
from reflectune.inference.trace_files.reading import TraceFile

TraceForm = Literal["auto", "jsonl", "parquet"]
"""Format of a pipeline's traces; `auto`: Parquet above `MOST_LOGGED` bytes of JSONL."""

Reopen = Callable[[Mapping[str, float]], bool]
"""Returns True if a trace that a budget ended (`Trace.limit`) is computed again."""

MOST_LOGGED: Final = 64 * 2**20
"""Bytes of JSONL: about 500 questions with 150 passages each."""


@dataclass(frozen=True)
class TraceStore:
    """Storage of a pipeline's traces.

    The result is `<name>.jsonl`, or `<name>.parquet` with the passages' text in `<name>.passages.parquet`, in the order
    of question ids. Until then each process logs its rows in `parts/<name>.<process>.jsonl`. Unless the format is
    JSONL, a log that grows too long is sealed: its rows become a pair of Parquet files, and the log restarts empty.

    Attributes:
        folder: The folder.
        name: The pipeline's name.
        fingerprint: Hash of everything that determines a trace.
        form: Format. Finished traces of the other format stay until some are added.
        most_logged: Maximum size of a log in bytes of JSONL.
    """

    folder: Path
    name: str
    fingerprint: str
    form: TraceForm = "auto"
    most_logged: int = MOST_LOGGED

    def fill(
        self,
        questions: Sequence[Question],
        answer: Callable[[Sequence[Question]], Iterable[tuple[str, Row]]],
        batch_questions: int,
        processes: Processes,
        *,
        reopen: Reopen | None = None,
    ) -> Mapping[str, Trace]:
        """Compute the missing traces (see `run_batches`), merge them, and return all.

        Args:
            questions: In order of their ids, which must be unique.
            answer: Computes a batch's rows, each with its question's id.
            batch_questions: Questions in a batch.
            processes: Processes of the launch.
            reopen: Selects traces to drop and compute again; None for none.

        Returns:
            The questions' traces by id, in order; in Parquet they stay on disk (see `TraceColumns`).

        Raises:
            UserError: Two questions share an id, or a file is damaged or of other settings.
        """
        ids = unique_ids(questions)
        if reopen is not None:
            if processes.index == 0:
                self._drop(reopen)
            processes.wait()
        logged = {*self._logs.places(), *self._ids(self._logs.sealed())}
        done = logged | self._ids(self._table) | {row["id"] for log in self._lines for row in self._rows(log)}
        if logged or not done.issuperset(ids):
            starts = range(0, len(questions), batch_questions)
            batches = [questions[start : start + batch_questions] for start in starts]
            run_batches(
                batches, answer, self._logs, done, merge=lambda: self._merge(ids), processes=processes, desc=self.name
            )
        return self.read(ids)

    def read(self, ids: Sequence[str]) -> Mapping[str, Trace]:
        """Return the merged traces of these questions, by id."""
        if self._table:
            return TraceColumns(TraceFile(self._table[0], self.fingerprint), ids)
        selected = set(ids)
        by_id = {row["id"]: from_row(row) for log in self._lines for row in self._rows(log) if row["id"] in selected}
        return {question_id: by_id[question_id] for question_id in ids}

    @property
    def _logs(self) -> SealingLogs:
        most_bytes = None if self.form == "jsonl" else self.most_logged
        return SealingLogs(self.folder / "parts", f"{self.name}.*.jsonl", self.fingerprint, most_bytes)

    @property
    def _table(self) -> list[Path]:
        return [path for path in [self.folder / f"{self.name}.parquet"] if path.exists()]

    @property
    def _lines(self) -> list[Path]:
        return [path for path in [self.folder / f"{self.name}.jsonl"] if path.exists()]

    def _drop(self, unwanted: Reopen) -> None:
        """Drop traces that an unwanted budget ended, from all files."""
        merged = self.folder / f"{self.name}.jsonl"
        drop_rows(merged, self.fingerprint, lambda row: unwanted(row["limit"]))
        for table in (*self._table, *self._logs.sealed()):
            drop_traces(table, self.fingerprint, unwanted)

    def _rows(self, log: Path) -> Iterator[Row]:
        return read_rows(log, self.fingerprint)

    def _ids(self, tables: Iterable[Path]) -> set[str]:
        columns = (read_column(table, "question_id", self.fingerprint) for table in tables)
        return {question_id for column in columns for question_id in column.to_pylist()}

    def _merge(self, ids: Sequence[str]) -> None:
        """Merge the processes' parts with the merged file, and delete the parts."""
        logs, tables, lines = self._logs, self._table, self._lines
        stored = {*logs.places(), *self._ids([*tables, *logs.sealed()])}
        stored |= {row["id"] for log in lines for row in self._rows(log)}
        if missing := [question_id for question_id in ids if question_id not in stored]:
            raise RuntimeError(f"{self.name}: no row of {len(missing)} items, the first being {missing[0]}")
        if self._grows_long([*lines, *logs.paths()]):
            self._merge_tables()
        else:
            path = self.folder / f"{self.name}.jsonl"
            merge_lines([*lines, *logs.paths()], [*tables, *logs.sealed()], path, self.fingerprint)
            for table in tables:
                table.unlink()
                passages_path(table).unlink()
        logs.remove()
        if not any(logs.folder.iterdir()):
            logs.folder.rmdir()

    def _grows_long(self, logs: Sequence[Path]) -> bool:
        """Return True if the merged file is Parquet."""
        if self.form != "auto":
            return self.form == "parquet"
        long = sum(log.stat().st_size for log in logs) > self.most_logged
        return long or bool(self._table) or bool(self._logs.sealed())

    def _merge_tables(self) -> None:
        logs, no_keys = self._logs, np.empty(0, np.int64)
        stems = {log: log.with_suffix("") for log in logs.paths()}
        stems |= dict.fromkeys(self._lines, logs.folder / f"{self.name}.merged")
        for log, stem in stems.items():
            seal(log, stem, self.fingerprint, no_keys)
        table = self.folder / f"{self.name}.parquet"
        merge_tables([*self._table, *logs.sealed()], table, self.fingerprint)
        for log in self._lines:
            log.unlink()


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

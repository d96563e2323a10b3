"""Traces kept while a pipeline answers: logged row by row, sealed into Parquet when they are many, then merged."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import numpy as np

from reflectune.core.durable import read_rows
from reflectune.core.resumable import Processes, Row, drop_rows, run_batches, unique_ids
from reflectune.core.types import Question
from reflectune.inference.trace import Trace, from_row
from reflectune.inference.trace_files.columns import TraceColumns
from reflectune.inference.trace_files.layout import passages_path, read_column
from reflectune.inference.trace_files.merging import drop_traces, merge_lines, merge_tables
from reflectune.inference.trace_files.reading import TraceFile
from reflectune.inference.trace_files.sealing import SealingLogs, seal

TraceForm = Literal["auto", "jsonl", "parquet"]
"""How a pipeline's traces are kept; `auto`: as Parquet once they have more than `MOST_LOGGED` as JSONL."""

Reopen = Callable[[Mapping[str, float]], bool]
"""Whether a trace that was ended by a budget (`Trace.limit`) is to be made again."""

MOST_LOGGED: Final = 64 * 2**20
"""Bytes of JSONL: about 500 questions with 150 passages each."""


@dataclass(frozen=True)
class TraceStore:
    """Where the traces of a pipeline are kept.

    They end in `<name>.jsonl`, or in `<name>.parquet` with the passages' text in `<name>.passages.parquet`, in the
    order of question ids. Until then each process logs its rows in `parts/<name>.<process>.jsonl`. Unless they are
    wanted as JSONL, a log that grows too long is sealed: its rows become a pair of files there, and it begins anew.

    Attributes:
        folder: The folder.
        name: The pipeline's.
        fingerprint: Hash of everything that determines a trace.
        form: How they are kept. Finished traces of the other form stay as they are until some are added.
        most_logged: Bytes of JSONL in one log.
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
        """Make the traces that are missing (see `run_batches`), merge them, and return all.

        Args:
            questions: In order of their ids, which must be unique.
            answer: Makes a batch's rows, each with its question's id.
            batch_questions: Questions in a batch.
            processes: Of the launch.
            reopen: Which traces are dropped before, so that they are missing; None for none.

        Returns:
            The questions' traces by id, in order; in Parquet they stay on the disk (see `TraceColumns`).

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
                batches,
                answer,
                self._logs,
                done,
                merge=lambda: self._merge(ids),
                processes=processes,
                desc=self.name,
            )
        return self.read(ids)

    def read(self, ids: Sequence[str]) -> Mapping[str, Trace]:
        """The merged traces of these questions, by id."""
        if self._table:
            return TraceColumns(TraceFile(self._table[0], self.fingerprint), ids)
        wanted = set(ids)
        by_id = {row["id"]: from_row(row) for log in self._lines for row in self._rows(log) if row["id"] in wanted}
        return {question_id: by_id[question_id] for question_id in ids}

    @property
    def _logs(self) -> SealingLogs:
        most_bytes = None if self.form == "jsonl" else self.most_logged
        return SealingLogs(self.folder / "parts", f"{self.name}.*.jsonl", self.fingerprint, most_bytes)

    @property
    def _table(self) -> list[Path]:
        """The merged file in Parquet, if there is one."""
        return [path for path in [self.folder / f"{self.name}.parquet"] if path.exists()]

    @property
    def _lines(self) -> list[Path]:
        """The merged file in JSONL, if there is one."""
        return [path for path in [self.folder / f"{self.name}.jsonl"] if path.exists()]

    def _drop(self, unwanted: Reopen) -> None:
        """Drop traces that were ended by an unwanted budget, wherever they stand."""
        merged = self.folder / f"{self.name}.jsonl"
        drop_rows(merged, self.fingerprint, lambda row: unwanted(row.get("limit") or {}))
        for table in (*self._table, *self._logs.sealed()):
            drop_traces(table, self.fingerprint, unwanted)

    def _rows(self, log: Path) -> Iterator[Row]:
        return read_rows(log, self.fingerprint)

    def _ids(self, tables: Iterable[Path]) -> set[str]:
        columns = (read_column(table, "question_id", self.fingerprint) for table in tables)
        return {question_id for column in columns for question_id in column.to_pylist()}

    def _merge(self, ids: Sequence[str]) -> None:
        """Merge what the processes made and what was merged before, and delete the parts.

        Raises:
            RuntimeError: A question has no row.
        """
        logs, tables, lines = self._logs, self._table, self._lines
        held = {*logs.places(), *self._ids([*tables, *logs.sealed()])}
        held |= {row["id"] for log in lines for row in self._rows(log)}
        if missing := [question_id for question_id in ids if question_id not in held]:
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
        """Whether the merged file is one in Parquet."""
        if self.form != "auto":
            return self.form == "parquet"
        long = sum(log.stat().st_size for log in logs) > self.most_logged
        return long or bool(self._table) or bool(self._logs.sealed())

    def _merge_tables(self) -> None:
        """Seal what is in JSONL still, and merge all files in Parquet."""
        logs, none_known = self._logs, np.empty(0, np.int64)
        stems = {log: log.with_suffix("") for log in logs.paths()}
        stems |= dict.fromkeys(self._lines, logs.folder / f"{self.name}.merged")
        for log, stem in stems.items():
            seal(log, stem, self.fingerprint, none_known)
        table = self.folder / f"{self.name}.parquet"
        merge_tables([*self._table, *logs.sealed()], table, self.fingerprint)
        for log in self._lines:
            log.unlink()

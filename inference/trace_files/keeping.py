"""Storage of traces while a pipeline answers: logged row by row, then merged into JSONL or, when large, Parquet."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from reflectune.core.durable import scan_rows, write_rows
from reflectune.core.launching import Processes
from reflectune.core.resumable import Logs, Row, RowPosition, row_at, run_batches, unique_ids
from reflectune.core.types import Question
from reflectune.inference.trace import from_row, to_row
from reflectune.inference.trace_files.columns import StoredTraces, TraceColumns
from reflectune.inference.trace_files.layout import QUESTIONS_AT_ONCE, passages_path, write_traces
from reflectune.inference.trace_files.reading import TraceFile

TraceForm = Literal["auto", "jsonl", "parquet"]
"""Format of a pipeline's traces; `auto`: Parquet above `MAX_LOGGED` bytes of JSONL."""

IsOutdated = Callable[[Row], bool]
"""Returns True for a stored row that must be computed again. Rows have at least the fields of `TraceFile.endings`."""

MAX_LOGGED: Final = 64 * 2**20
"""Bytes of JSONL: about 500 questions with 150 passages each."""

_ANSWERED: Final = 2


@dataclass(frozen=True)
class TraceStore:
    """Storage of a pipeline's traces.

    The result is `<name>.jsonl`, or `<name>.parquet` with the passages' text in `<name>.passages.parquet`, in the order
    of question ids. Until then each process logs its rows in `parts/<name>.<process>.jsonl`.

    Attributes:
        folder: The folder.
        name: The pipeline's name.
        fingerprint: Hash of everything that determines a trace.
        form: Format. Finished traces in the other format are converted only when traces are added.
        max_logged: Maximum size of the merged file in bytes of JSONL, if the format is `auto`.
    """

    folder: Path
    name: str
    fingerprint: str
    form: TraceForm = "auto"
    max_logged: int = MAX_LOGGED

    def fill(
        self,
        questions: Sequence[Question],
        answer: Callable[[Sequence[Question]], Iterable[tuple[str, Row]]],
        batch_questions: int | None,
        processes: Processes,
        *,
        is_outdated: IsOutdated = lambda row: False,
        ahead: Callable[[Sequence[Question]], None] = lambda batch: None,
    ) -> StoredTraces:
        """Compute missing and failed traces (see `run_batches`), merge them with the others, and return all.

        Args:
            questions: In order of their ids, which must be unique.
            answer: Computes a batch's rows, each with its question's id.
            batch_questions: Questions in a batch; None: all missing ones of a process at once.
            processes: Processes of the launch.
            is_outdated: Selects stored traces that are computed again.
            ahead: Called with the next batch before one is answered.

        Returns:
            The questions' traces by id, in order; in Parquet they stay on disk (see `TraceColumns`).

        Raises:
            UserError: Two questions share an id, or a file is damaged or of other settings.
        """
        ids = unique_ids(questions)
        ranked = self._ranked([*self._lines, *self._logs.paths()], is_outdated)
        done = {key for key, (rank, _) in ranked.items() if rank == _ANSWERED}
        done |= {key for key, rank in self._ranked_table(is_outdated).items() if rank == _ANSWERED}
        if self._logs.paths() or not done.issuperset(ids):
            size = batch_questions or 1
            batches = [questions[start : start + size] for start in range(0, len(questions), size)]
            run_batches(
                batches,
                answer,
                self._logs,
                done,
                merge=lambda: self._merge(ids, is_outdated),
                processes=processes,
                desc=self.name,
                at_once=batch_questions is None,
                ahead=ahead,
            )
        return self.read(ids)

    def read(self, ids: Sequence[str]) -> StoredTraces:
        """Return the merged traces of these questions, by id."""
        if self._table.exists():
            return TraceColumns(TraceFile(self._table, self.fingerprint), ids)
        places = self._ranked(self._lines)
        return {question_id: from_row(row_at(*places[question_id][1])) for question_id in ids}

    @property
    def _logs(self) -> Logs:
        return Logs(self.folder / "parts", f"{self.name}.*.jsonl", self.fingerprint)

    @property
    def _lines(self) -> list[Path]:
        return [path for path in [self.folder / f"{self.name}.jsonl"] if path.exists()]

    @property
    def _table(self) -> Path:
        return self.folder / f"{self.name}.parquet"

    def _ranked(
        self, paths: Iterable[Path], is_outdated: IsOutdated = lambda row: False
    ) -> dict[str, tuple[int, RowPosition]]:
        """Return the `_rank` and place of each question's best row in JSONL files; the last one of equal rank."""
        ranked: dict[str, tuple[int, RowPosition]] = {}
        for path in paths:
            for begin, _, row in scan_rows(path, self.fingerprint):
                rank = _rank(row, is_outdated)
                if rank >= ranked.get(row["id"], (0, None))[0]:
                    ranked[row["id"]] = (rank, (path, begin))
        return ranked

    def _ranked_table(self, is_outdated: IsOutdated) -> dict[str, int]:
        """Return the `_rank` of each question's trace in Parquet."""
        if not self._table.exists():
            return {}
        rows = TraceFile(self._table, self.fingerprint).endings()
        return {row["question_id"]: _rank(row, is_outdated) for row in rows}

    def _merge(self, ids: Sequence[str], is_outdated: IsOutdated) -> None:
        """Merge the processes' logs with the merged file, and delete the logs."""
        logs, lines, table = self._logs, self._lines, self._table
        paths = [*lines, *logs.paths()]
        ranked, table_ranks = self._ranked(paths, is_outdated), self._ranked_table(is_outdated)
        tabled = {key for key, rank in table_ranks.items() if rank}
        stored = tabled.union(key for key, (rank, _) in ranked.items() if rank)
        if missing := [question_id for question_id in ids if question_id not in stored]:
            raise RuntimeError(f"{self.name}: no row of {len(missing)} items, the first being {missing[0]}")
        places = {key: place for key, (rank, place) in ranked.items() if rank or key not in tabled}
        rows = self._merged_rows(sorted({*places, *table_ranks}), places)  # outdated rows stay until they are replaced
        if self._is_large(paths):
            write_traces(table, self.fingerprint, rows)
            outdated = lines
        else:
            write_rows(self.folder / f"{self.name}.jsonl", self.fingerprint, rows)
            outdated = [table, passages_path(table)]
        for path in outdated:
            path.unlink(missing_ok=True)
        logs.remove()

    def _merged_rows(self, ids: Sequence[str], places: Mapping[str, RowPosition]) -> Iterator[Row]:
        """Yield the rows of questions: those of JSONL files at their places, the others from Parquet."""
        table = TraceFile(self._table, self.fingerprint) if self._table.exists() else None
        for start in range(0, len(ids), QUESTIONS_AT_ONCE):
            group = ids[start : start + QUESTIONS_AT_ONCE]
            traces = table.read([key for key in group if key not in places]) if table else {}
            for key in group:
                yield row_at(*places[key]) if key in places else {"id": key, **to_row(traces[key])}

    def _is_large(self, logs: Sequence[Path]) -> bool:
        """Return True if the merged file should be Parquet."""
        if self.form != "auto":
            return self.form == "parquet"
        return self._table.exists() or sum(log.stat().st_size for log in logs) > self.max_logged


def _rank(row: Row, is_outdated: IsOutdated) -> int:
    """Return the rank of a stored trace: 0 if it must be computed again, 1 for a failure, else `_ANSWERED`."""
    if is_outdated(row):
        return 0
    return 1 if row.get("error", "") else _ANSWERED

"""Long work over rows with ids: divided among processes, resumed after `kill -9`, merged at the end."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any, Final, TypeVar

from reflectune.core.durable import RowLog, read_rows, scan_rows, write_rows
from reflectune.core.errors import UserError
from reflectune.core.launching import ALONE, Processes
from reflectune.core.progress import progress_bar

Item = TypeVar("Item")
Row = dict[str, Any]
RowPosition = tuple[Path, int]
"""A log, and the first byte of a row in it."""

_ID: Final = attrgetter("id")


@dataclass(frozen=True)
class Logs:
    """Logs of finished rows until they are merged: a `RowLog` for each process.

    Attributes:
        folder: Their folder.
        pattern: Their file name; `*` stands for a process's number.
        fingerprint: Hash of everything that determines a row.
        is_failed: Returns True for a row that is computed again.
    """

    folder: Path
    pattern: str
    fingerprint: str
    is_failed: Callable[[Row], bool] = lambda row: False

    def open(self, process: int = 0) -> RowLog:
        """Open the log of a process, to append to."""
        return RowLog(self.folder / self.pattern.replace("*", str(process)), self.fingerprint)

    def paths(self) -> list[Path]:
        """Return the existing logs."""
        return sorted(self.folder.glob(self.pattern))

    def positions(self) -> dict[str, RowPosition]:
        """Return the log of each row and its first byte, by the row's id; of several rows, one that did not fail.

        Raises:
            UserError: A log was written under another fingerprint.
        """
        positions: dict[str, RowPosition] = {}
        for path in self.paths():
            for begin, _, row in scan_rows(path, self.fingerprint):
                if row["id"] not in positions or not self.is_failed(row):
                    positions[row["id"]] = path, begin
        return positions

    def finished(self) -> set[str]:
        """Return the ids of the rows that did not fail."""
        rows = (row for path in self.paths() for _, _, row in scan_rows(path, self.fingerprint))
        return {row["id"] for row in rows if not self.is_failed(row)}

    def rows(self, ids: Iterable[str]) -> Iterator[Row]:
        """Return the rows of these ids, in this order. Memory holds only their positions."""
        positions = self.positions()
        return (row_at(*positions[row_id]) for row_id in ids)

    def remove(self) -> None:
        """Delete the logs, once their rows are stored elsewhere, and their folder if it is empty."""
        for path in self.paths():
            path.unlink()
        if not any(self.folder.iterdir()):
            self.folder.rmdir()


def row_at(path: Path, begin: int) -> Row:
    """Read the row of a log that begins at a byte."""
    with path.open("rb") as file:
        file.seek(begin)
        row: Row = json.loads(file.readline())
        return row


def run_batches(
    batches: Sequence[Sequence[Item]],
    work: Callable[[Sequence[Item]], Iterable[tuple[str, Row]]],
    logs: Logs,
    done: Collection[str],
    *,
    merge: Callable[[], None] = lambda: None,
    processes: Processes = ALONE,
    key: Callable[[Item], str] = _ID,
    desc: str = "",
    unit: str = "question",
    at_once: bool = False,
    ahead: Callable[[Sequence[Item]], None] = lambda batch: None,
) -> None:
    """Compute the missing rows in all processes; then the first process merges them.

    Process i mod n runs batch i. A batch is always run whole, with the same items, however often the run was
    interrupted, so that the rows are the same for any number of processes.

    Args:
        batches: The items, in batches.
        work: Yields a batch's rows with their ids; they are logged as they come. Not called for a finished batch.
        logs: Logs of the rows.
        done: Ids of all finished rows, in `logs` or elsewhere, when the run begins.
        merge: Called by the first process when all have finished.
        processes: Processes of the launch.
        key: Returns an item's id.
        desc: Label of the progress bar.
        unit: Unit of the progress bar.
        at_once: True to work on all batches of a process as one, in which no item depends on the others.
        ahead: Called with the next batch before the work on one begins.

    Raises:
        UserError: Another run appends to the same logs, or they are of other settings.
    """
    processes.wait()  # no process writes before all have read `done`
    # the log stays open until the rows are merged, so that no other run deletes or merges them
    with logs.open(processes.index) as log:
        mine = batches[processes.index :: processes.count]
        left = [batch for batch in mine if any(key(item) not in done for item in batch)]
        if at_once and left:
            left = [[item for batch in left for item in batch if key(item) not in done]]
        total, initial = sum(map(len, mine)), sum(key(item) in done for batch in mine for item in batch)
        with progress_bar(total=total, initial=initial, desc=desc, unit=unit, disable=processes.index > 0) as bar:
            for batch, following in itertools.zip_longest(left, left[1:], fillvalue=()):
                ahead(following)
                for row_id, row in work(batch):
                    if row_id not in done:
                        log.append(row_id, row)
                        bar.update()
        processes.wait()
        if processes.index == 0:
            merge()
        processes.wait()


def run_to_file(
    path: Path,
    items: Sequence[Item],
    work: Callable[[Sequence[Item]], Iterable[tuple[str, Row]]],
    fingerprint: str,
    batch_size: int,
    processes: Processes = ALONE,
    *,
    is_failed: Callable[[Row], bool] = lambda row: False,
) -> tuple[dict[str, Row], int]:
    """Compute the rows of items that have none (see `run_batches`), and merge all into one JSONL file, sorted by id.

    Args:
        path: The file. The processes' logs lie in `parts` in its folder until they are merged.
        items: Items in order of their ids (`item.id`), which must be unique.
        work: Yields a batch's rows.
        fingerprint: Hash of everything that determines a row.
        batch_size: Items in a batch.
        processes: Processes of the launch.
        is_failed: Returns True for a row that is computed again.

    Returns:
        All rows of the file by id, and the number of items that were computed.

    Raises:
        UserError: Two items share an id, or the file or a log is of other settings.
    """
    ids = unique_ids(items)
    logs = Logs(path.parent / "parts", f"{path.stem}.*.jsonl", fingerprint, is_failed)
    merged, logged = _read(path, fingerprint), _logged(logs)
    done = {row_id for row_id, row in (*merged.items(), *logged.items()) if not is_failed(row)}
    left = sum(row_id not in done for row_id in ids)
    if not logged and not left:
        return merged, 0

    def merge() -> None:
        rows = {**_read(path, fingerprint), **_logged(logs)}
        if missing := [row_id for row_id in ids if row_id not in rows]:
            raise RuntimeError(f"{path}: no row of {len(missing)} items, the first being {missing[0]}")
        write_rows(path, fingerprint, [rows[row_id] for row_id in sorted(rows)])
        logs.remove()

    batches = [items[start : start + batch_size] for start in range(0, len(items), batch_size)]
    run_batches(batches, work, logs, done, merge=merge, processes=processes, desc=path.stem)
    return _read(path, fingerprint), left


def unique_ids(items: Iterable[Any]) -> list[str]:
    """Return the ids of items (`item.id`), which are sorted by them.

    Raises:
        UserError: Two items share an id.
    """
    ids: list[str] = list(map(_ID, items))
    for first, second in itertools.pairwise(ids):
        if first == second:
            raise UserError(f"two questions have the id {first}; ids must be unique over the splits of a run")
    return ids


def run_chunks(
    items: Sequence[Item],
    size: int,
    make: Callable[[Sequence[Item]], Row],
    logs: Logs,
    *,
    processes: Processes = ALONE,
    desc: str = "questions",
    ahead: Callable[[Sequence[Item]], None] = lambda chunk: None,
) -> Iterator[Row]:
    """Compute one row for every `size` items, divided among the processes; yield all rows in order.

    Args:
        items: Items in the same order in all processes and whenever the run is resumed.
        size: Items of a row.
        make: Computes a row.
        logs: Logs of the rows, which the caller deletes once it has stored them.
        processes: Processes of the launch.
        desc: Label of the progress bar.
        ahead: Called with the next row's items before the work on one begins.
    """
    starts = range(0, len(items), size)

    def work(batch: Sequence[int]) -> Iterator[tuple[str, Row]]:
        return ((str(start), make(items[start : start + size])) for start in batch)

    def begin(batch: Sequence[int]) -> None:
        for start in batch:
            ahead(items[start : start + size])

    batches = [[start] for start in starts]
    done = logs.positions()
    run_batches(batches, work, logs, done, processes=processes, key=str, desc=desc, unit=f"×{size}", ahead=begin)
    return logs.rows(map(str, starts))


def _logged(logs: Logs) -> dict[str, Row]:
    """Return the rows of logs by id; of several, one that did not fail."""
    rows: dict[str, Row] = {}
    for path in logs.paths():
        for _, _, row in scan_rows(path, logs.fingerprint):
            if row["id"] not in rows or not logs.is_failed(row):
                rows[row["id"]] = row
    return rows


def _read(path: Path, fingerprint: str) -> dict[str, Row]:
    """Return the rows of a merged file by id, if it exists."""
    return {row["id"]: row for row in read_rows(path, fingerprint)} if path.exists() else {}

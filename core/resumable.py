"""Long work over rows that have ids: shared out among processes, gone on with after `kill -9`, merged at the end."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from reflectune.core.durable import RowLog, read_rows, scan_rows, write_atomically
from reflectune.core.errors import UserError
from reflectune.core.progress import progress_bar

if TYPE_CHECKING:
    from accelerate import PartialState

Item = TypeVar("Item")
Row = dict[str, Any]

_ID: Final = attrgetter("id")


@dataclass(frozen=True)
class Processes:
    """The processes of a launch, seen from one: its number, how many there are, and how to wait for all of them."""

    index: int = 0
    count: int = 1
    wait: Callable[[], None] = lambda: None

    @contextmanager
    def main_process_first(self) -> Iterator[None]:
        """What the first process does before the others do it, too."""
        if self.index:
            self.wait()
        yield
        if not self.index:
            self.wait()


ALONE: Final = Processes()
"""One process, which waits for nobody."""


_PATIENCE: Final = timedelta(days=30)
"""How long a process waits for the others: the first may finish hours before the last."""


def launch_state() -> PartialState:
    """The launch that this process belongs to; it joins the first time, to wait for the others as long as it takes."""
    import torch  # slow to import, as what follows
    from accelerate import PartialState

    return PartialState(cpu=not torch.accelerator.is_available(), timeout=_PATIENCE)


def launch_processes() -> Processes:
    """The processes of the launch that this one belongs to."""
    state = launch_state()
    return Processes(state.process_index, state.num_processes, state.wait_for_everyone)


def launch_device(device: str) -> str:
    """A device as a config has it; `auto` is this process's in its launch."""
    return str(launch_state().device) if device == "auto" else device


def join_launch(device: str) -> tuple[Processes, str]:
    """The processes of the launch that this one belongs to, and this one's device.

    Args:
        device: As a config has it; `auto` is this process's accelerator in a launch of several, and stays otherwise.
    """
    processes = launch_processes()
    return processes, launch_device(device) if processes.count > 1 else device


@dataclass(frozen=True)
class Logs:
    """Where finished rows are appended until they are merged: a `RowLog` for each process.

    Attributes:
        folder: Where they are.
        pattern: Their file name; `*` stands for a process's number.
        fingerprint: Hash of everything that determines a row.
    """

    folder: Path
    pattern: str
    fingerprint: str

    def open(self, process: int = 0) -> RowLog:
        """The log of one process, to append to."""
        return RowLog(self.folder / self.pattern.replace("*", str(process)), self.fingerprint)

    def paths(self) -> list[Path]:
        """The logs that are there."""
        return sorted(self.folder.glob(self.pattern))

    def places(self) -> dict[str, tuple[Path, int]]:
        """By the id of each row that is finished: its log, and the byte that it begins at.

        Raises:
            UserError: A log was written under another fingerprint.
        """
        return {
            row["id"]: (path, begin) for path in self.paths() for begin, _, row in scan_rows(path, self.fingerprint)
        }

    def rows(self, ids: Iterable[str] | None = None) -> Iterator[Row]:
        """The rows of these ids, in this order; all, sorted by id, if None. Memory holds places, not rows."""
        places = self.places()
        for path, begin in map(places.__getitem__, sorted(places) if ids is None else ids):
            with path.open("rb") as file:
                file.seek(begin)
                yield json.loads(file.readline())

    def remove(self) -> None:
        """Delete the logs, once their rows are kept elsewhere."""
        for path in self.paths():
            path.unlink()


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
) -> None:
    """Make the rows that are missing, in all processes; then the first process merges them.

    Process i mod n runs batch i. A batch is always run whole, with the same items, however often the run was cut off:
    so the rows are the same for any number of processes.

    Args:
        batches: What to make rows of.
        work: Makes a batch's rows, each with its id; they are logged as they come. Not called for a finished batch.
        logs: Where to.
        done: Ids of all rows that are finished, in `logs` or elsewhere, when the run begins.
        merge: What the first process does when all are through.
        processes: Of the launch.
        key: An item's id.
        desc: What the progress bar is called.
        unit: What it counts.

    Raises:
        UserError: Another run appends to the same logs, or they are of other settings.
    """
    processes.wait()  # all know what is done before one of them writes
    with logs.open(processes.index) as log:  # until the rows are merged, so that no other run deletes or merges them
        finished = {*done, *log.done}
        mine = batches[processes.index :: processes.count]
        left = [batch for batch in mine if any(key(item) not in finished for item in batch)]
        total, initial = sum(map(len, mine)), sum(key(item) in finished for batch in mine for item in batch)
        with progress_bar(total=total, initial=initial, desc=desc, unit=unit, disable=processes.index > 0) as bar:
            for row_id, row in itertools.chain.from_iterable(map(work, left)):
                if row_id not in finished:
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
) -> tuple[dict[str, Row], int]:
    """Make a row of every item that has none yet (see `run_batches`), and merge all into one JSONL file, sorted by id.

    Args:
        path: The file; the processes' logs lie in `parts` beside it until they are merged.
        items: In order of their ids (`item.id`), which must be unique.
        work: Makes a batch's rows.
        fingerprint: Hash of everything that determines a row.
        batch_size: Items in a batch.
        processes: Of the launch.

    Returns:
        All rows of the file, by id; and how many items had none.

    Raises:
        UserError: Two items share an id, or the file or a log is of other settings.
    """
    ids = unique_ids(items)
    logs = Logs(path.parent / "parts", f"{path.stem}.*.jsonl", fingerprint)
    merged, logged = _read(path, fingerprint), logs.places()
    done = {*merged, *logged}
    left = sum(row_id not in done for row_id in ids)
    if not logged and not left:
        return merged, 0

    def merge() -> None:
        rows = {**_read(path, fingerprint), **{row["id"]: row for row in logs.rows()}}
        if missing := [row_id for row_id in ids if row_id not in rows]:
            raise RuntimeError(f"{path}: no row of {len(missing)} items, the first being {missing[0]}")
        lines = [{"fingerprint": fingerprint}, *(rows[row_id] for row_id in sorted(rows))]
        write_atomically(path, "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))
        logs.remove()
        if not any(logs.folder.iterdir()):
            logs.folder.rmdir()

    batches = [items[start : start + batch_size] for start in range(0, len(items), batch_size)]
    run_batches(batches, work, logs, done, merge=merge, processes=processes, desc=path.stem)
    return _read(path, fingerprint), left


def unique_ids(items: Iterable[Any]) -> list[str]:
    """The ids of items (`item.id`) that are in order of them.

    Raises:
        UserError: Two items share an id.
    """
    ids: list[str] = list(map(_ID, items))
    for first, second in itertools.pairwise(ids):
        if first == second:
            raise UserError(f"two questions have the id {first}; ids must be unique over the splits of a run")
    return ids


def drop_rows(path: Path, fingerprint: str, unwanted: Callable[[Row], bool]) -> None:
    """Take rows out of a file of `run_to_file` and the logs beside it, so that they are made again.

    Args:
        path: The file; it need not be there.
        fingerprint: Hash of everything that determines a row.
        unwanted: Which rows.

    Raises:
        UserError: The file or a log is of other settings.
    """
    logs = Logs(path.parent / "parts", f"{path.stem}.*.jsonl", fingerprint)
    for each in filter(Path.exists, (path, *logs.paths())):
        rows = list(read_rows(each, fingerprint))
        kept = [row for row in rows if not unwanted(row)]
        if len(kept) < len(rows):
            lines = [{"fingerprint": fingerprint}, *kept]
            write_atomically(each, "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))


def run_chunks(
    items: Sequence[Item],
    size: int,
    make: Callable[[Sequence[Item]], Row],
    logs: Logs,
    *,
    processes: Processes = ALONE,
    desc: str = "questions",
) -> Iterator[Row]:
    """Make one row of every `size` items, each in one of the processes; yield the rows in order when all are made.

    Args:
        items: In the same order whenever the run is gone on with, and in all processes.
        size: Items that a row stands for.
        make: Makes a row.
        logs: Where to; the caller deletes them when it has kept the rows.
        processes: Of the launch.
        desc: What the progress bar is called.
    """
    starts = range(0, len(items), size)

    def work(batch: Sequence[int]) -> Iterator[tuple[str, Row]]:
        return ((str(start), make(items[start : start + size])) for start in batch)

    batches = [[start] for start in starts]
    done = logs.places()
    run_batches(batches, work, logs, done, processes=processes, key=str, desc=desc, unit=f"×{size}")
    return logs.rows(map(str, starts))


def _read(path: Path, fingerprint: str) -> dict[str, Row]:
    """The whole rows of a merged file, by id; none if there is no file."""
    return {row["id"]: row for row in read_rows(path, fingerprint)} if path.exists() else {}

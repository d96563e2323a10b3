"""Rows of many processes: the same file whatever was cut off where, and nothing made twice without need."""

import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reflectune.core.durable import read_rows
from reflectune.core.errors import UserError
from reflectune.core.launching import Processes
from reflectune.core.resumable import Logs, Row, run_batches, run_chunks, run_to_file


@dataclass(frozen=True)
class Item:
    id: str


ITEMS = [Item(f"q{number}") for number in range(8)]


def company(batch: Sequence[Item]) -> Iterator[tuple[str, Row]]:
    """Rows that tell in which company they were made."""
    return ((item.id, {"with": [other.id for other in batch]}) for item in batch)


def logs(folder: Path) -> Logs:
    return Logs(folder / "parts", "rows.*.jsonl", "f")


@settings(deadline=None, max_examples=30)
@given(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 9), st.integers(0, 60)), max_size=4), st.integers(1, 3))
def test_processes_and_interruptions_leave_the_same_file(tmp_path_factory, runs, last) -> None:
    straight, other = tmp_path_factory.mktemp("straight"), tmp_path_factory.mktemp("other")
    run_to_file(straight / "rows.jsonl", ITEMS, company, "f", 3)
    batches = [ITEMS[start : start + 3] for start in range(0, 8, 3)]
    for processes, most, cut in runs:
        for process in range(processes):
            done = logs(other).positions()
            with contextlib.suppress(KeyboardInterrupt):
                worker = Processes(process, processes)
                run_batches(batches, killed(most), logs(other), done, processes=worker, merge=kill)
            log = other / f"parts/rows.{process}.jsonl"
            log.write_bytes(log.read_bytes()[: -cut or None])  # in the middle of a row
    for process in reversed(range(1, last)):
        run_batches(batches, company, logs(other), logs(other).positions(), processes=Processes(process, last))
    run_to_file(other / "rows.jsonl", ITEMS, company, "f", 3, Processes(0, last))
    assert (other / "rows.jsonl").read_bytes() == (straight / "rows.jsonl").read_bytes()
    assert [path.name for path in other.iterdir()] == ["rows.jsonl"]


def kill() -> None:
    raise KeyboardInterrupt


def killed(most: int) -> Callable[[Sequence[Item]], Iterator[tuple[str, Row]]]:
    """Work that is cut off after some rows."""
    made: list[str] = []

    def work(batch: Sequence[Item]) -> Iterator[tuple[str, Row]]:
        for row_id, row in company(batch):
            if len(made) == most:
                kill()
            made.append(row_id)
            yield row_id, row

    return work


def test_every_process_has_every_nth_batch(tmp_path: Path) -> None:
    batches, processed_ids = [[item] for item in ITEMS], []

    def work(batch: Sequence[Item]) -> Iterator[tuple[str, Row]]:
        processed_ids.append(batch[0].id)
        return company(batch)

    run_batches(batches, work, logs(tmp_path), {"q3"}, processes=Processes(1, 2))
    assert processed_ids == ["q1", "q5", "q7"]
    assert [row["id"] for row in logs(tmp_path).rows(["q7", "q1"])] == ["q7", "q1"]


def test_more_items_join_a_finished_file_and_fewer_read_it(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    assert run_to_file(path, ITEMS[:3], company, "f", 3)[1] == 3
    rows, made = run_to_file(path, ITEMS, company, "f", 3)
    assert (list(rows), made) == ([item.id for item in ITEMS], 5)
    written = path.stat().st_mtime_ns
    assert run_to_file(path, ITEMS[:2], company, "f", 3) == (rows, 0)
    assert path.stat().st_mtime_ns == written


def test_failed_rows_of_a_finished_file_are_computed_again(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    run_to_file(path, ITEMS, lambda batch: ((item.id, {"error": item.id in ("q1", "q5")}) for item in batch), "f", 3)
    rows, made = run_to_file(path, ITEMS, company, "f", 3, is_failed=lambda row: row.get("error", False))
    assert made == 2
    assert [row_id for row_id, row in rows.items() if "with" in row] == ["q1", "q5"]
    assert list(rows) == [item.id for item in ITEMS]


def test_failed_rows_of_logs_are_computed_again_and_replaced(tmp_path: Path) -> None:
    """Process 1 of an interrupted run failed at q1; the next run has one process."""
    failed = {"error": True}
    for process, row_id in enumerate(("q0", "q1")):
        with logs(tmp_path).open(process) as log:
            log.append(row_id, failed if process else {"with": []})
    rows, made = run_to_file(tmp_path / "rows.jsonl", ITEMS[:3], company, "f", 3, is_failed=lambda row: "error" in row)
    assert made == 2
    assert [row["id"] for row in rows.values() if "error" in row] == []


@pytest.mark.parametrize("where", ["rows.jsonl", "parts/rows.4.jsonl"])
def test_rows_of_other_settings_are_refused(tmp_path: Path, where: str) -> None:
    (tmp_path / "parts").mkdir()
    (tmp_path / where).write_text(json.dumps({"fingerprint": "g"}) + "\n")
    with pytest.raises(UserError, match="written with other settings"):
        run_to_file(tmp_path / "rows.jsonl", ITEMS, company, "f", 3)


def test_work_that_leaves_an_item_out_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="no row of 8 items, the first being q0"):
        run_to_file(tmp_path / "rows.jsonl", ITEMS, lambda batch: [], "f", 3)
    assert not (tmp_path / "rows.jsonl").exists()


def test_logs_that_another_run_writes_are_neither_merged_nor_deleted(tmp_path: Path, start_python) -> None:
    writing = (
        "import sys, time; from pathlib import Path; from reflectune.core.resumable import Logs\n"
        "log = Logs(Path(sys.argv[1]), 'rows.*.jsonl', 'f').open()\n"
        "log.append('q0', {'with': []}); print('open', flush=True); time.sleep(60)"
    )
    folder = tmp_path / "parts"
    assert start_python(writing, str(folder)).stdout.readline() == "open\n"
    with pytest.raises(UserError, match="another run is writing"):
        run_to_file(tmp_path / "rows.jsonl", ITEMS[:1], company, "f", 3)  # q0 is there already: nothing is left
    assert [row["id"] for row in read_rows(folder / "rows.0.jsonl")] == ["q0"]


def test_chunks_come_in_the_order_of_their_items_and_are_made_once(tmp_path: Path) -> None:
    path, made = tmp_path / "rows.jsonl", []
    logs = Logs(tmp_path, path.name, "f")

    def make(chunk: Sequence[int]) -> Row:
        if len(made) == 11:
            raise KeyboardInterrupt
        made.append(chunk[0])
        return {"chunk": list(chunk)}

    with pytest.raises(KeyboardInterrupt):
        run_chunks(range(23), 2, make, logs)
    path.write_bytes(path.read_bytes()[:-4])
    made.clear()
    rows = list(run_chunks(range(23), 2, make, logs))
    assert made == [20, 22]
    assert [number for row in rows for number in row["chunk"]] == list(range(23))
    assert list(run_chunks([], 2, make, Logs(tmp_path, "none.jsonl", "f"))) == []

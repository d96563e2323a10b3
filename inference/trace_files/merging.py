"""Merge the parts of a pipeline's traces into one file, in the order of question ids, with a row group in memory."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from reflectune.core.durable import scan_rows
from reflectune.core.partials import writing
from reflectune.core.resumable import Row
from reflectune.inference.trace import Trace, to_row
from reflectune.inference.trace_files.layout import (
    KEY,
    PASSAGES,
    PASSAGES_AT_ONCE,
    QUESTIONS,
    QUESTIONS_AT_ONCE,
    open_table,
    parquet_file,
    passages_path,
    read_column,
    reading,
)
from reflectune.inference.trace_files.reading import TraceFile


def merge_tables(sources: Sequence[Path], path: Path, fingerprint: str) -> None:
    """Merge pairs of Parquet files into one, which may be one of them.

    If several have a question, the last one's trace is used.

    Args:
        sources: The questions' files; passages of one may be stored with another.
        path: The merged questions' file.
        fingerprint: Hash of everything that determines a trace.
    """
    files = [TraceFile(source, fingerprint) for source in sources]
    places = {key: (number, *file.place(key)) for number, file in enumerate(files) for key in file.ids}
    ids = sorted(places)
    _merge_passages([passages_path(source) for source in sources], passages_path(path), fingerprint)
    with parquet_file(path, QUESTIONS, fingerprint) as writer:
        for start in range(0, len(ids), QUESTIONS_AT_ONCE):
            writer.write_table(_gather([places[key] for key in ids[start : start + QUESTIONS_AT_ONCE]], files))


def _gather(places: Sequence[tuple[int, int, int]], files: Sequence[TraceFile]) -> pa.Table:
    """Read the rows at (file, row group, row), in this order."""
    rows_of: dict[tuple[int, int], list[int]] = {}
    for number, group, row in places:
        rows_of.setdefault((number, group), []).append(row)
    tables = [files[number].group(group).take(rows) for (number, group), rows in rows_of.items()]
    order = [(number, group, row) for (number, group), rows in rows_of.items() for row in rows]
    position = {place: index for index, place in enumerate(order)}
    return pa.concat_tables(tables).take([position[place] for place in places])


def _merge_passages(sources: Sequence[Path], path: Path, fingerprint: str) -> None:
    """Merge files of passages into one, each passage from the first file that has it."""
    keys = [read_column(source, KEY, fingerprint).to_numpy() for source in sources]
    first = np.zeros(sum(map(len, keys)), dtype=bool)
    first[np.unique(np.concatenate(keys), return_index=True)[1]] = True
    with parquet_file(path, PASSAGES, fingerprint) as writer:
        for table in _regrouped(_selected(sources, first), PASSAGES_AT_ONCE):
            writer.write_table(table)


def _selected(sources: Sequence[Path], selected: np.ndarray) -> Iterator[pa.Table]:
    """Yield the selected rows of files, a row group at a time."""
    start = 0
    for source in sources:
        with open_table(source) as file, reading(source):
            for group in range(file.num_row_groups):
                end = start + file.metadata.row_group(group).num_rows
                if selected[start:end].any():
                    yield file.read_row_group(group).filter(pa.array(selected[start:end]))
                start = end


def _regrouped(tables: Iterable[pa.Table], size: int) -> Iterator[pa.Table]:
    """Yield the same rows in groups of `size`."""
    left = PASSAGES.empty_table()
    for table in tables:
        left = pa.concat_tables([left, table])
        while len(left) >= size:
            yield left.slice(0, size)
            left = left.slice(size)
    if len(left):
        yield left


def drop_traces(path: Path, fingerprint: str, unwanted: Callable[[Mapping[str, float]], bool]) -> None:
    """Remove traces from a questions' file; their passages stay.

    Args:
        fingerprint: Hash of everything that determines a trace.
        unwanted: Returns True for a trace to remove, by the budget that ended it (`Trace.limit`).
    """

    kept = np.array([not unwanted(dict(limit or ())) for limit in read_column(path, "limit", fingerprint).to_pylist()])
    if kept.all():
        return
    start = 0
    with open_table(path, fingerprint) as file, parquet_file(path, QUESTIONS, fingerprint) as writer, reading(path):
        for number in range(file.num_row_groups):
            group = file.read_row_group(number)
            left = group.filter(pa.array(kept[start : start + len(group)]))
            start += len(group)
            if len(left):
                writer.write_table(left)


def merge_lines(logs: Sequence[Path], tables: Sequence[Path], path: Path, fingerprint: str) -> None:
    """Merge logs and pairs of Parquet files into one JSONL file, which may be one of the logs.

    If several have a question, the last log's row is used, else the last table's.

    Args:
        logs: JSONL files.
        tables: The questions' files; passages of one may be stored with another.
        fingerprint: Hash of everything that determines a trace.
    """
    texts = [passages_path(table) for table in tables]
    files = [TraceFile(table, fingerprint, texts) for table in tables]
    holders = {question_id: file for file in files for question_id in file.ids}
    places = {row["id"]: (log, begin) for log in logs for begin, _, row in scan_rows(log, fingerprint)}
    ids = sorted({*holders, *places})
    with writing(path) as partial, partial.open("wb") as written:
        written.write(_line({"fingerprint": fingerprint}))
        for start in range(0, len(ids), QUESTIONS_AT_ONCE):
            group = ids[start : start + QUESTIONS_AT_ONCE]
            traces = _read([question_id for question_id in group if question_id not in places], holders)
            for question_id in group:
                if question_id in places:
                    written.write(_line_at(*places[question_id]))
                else:
                    written.write(_line({"id": question_id, **to_row(traces[question_id])}))
        written.flush()
        os.fsync(written.fileno())


def _read(ids: Sequence[str], holders: Mapping[str, TraceFile]) -> dict[str, Trace]:
    """Read the whole traces of some questions, each from its file."""
    files = dict.fromkeys(holders[question_id] for question_id in ids)
    return {
        question_id: trace
        for file in files
        for question_id, trace in file.read([name for name in ids if holders[name] is file]).items()
    }


def _line_at(log: Path, begin: int) -> bytes:
    with log.open("rb") as file:
        file.seek(begin)
        return file.readline()


def _line(row: Row) -> bytes:
    return json.dumps(row, ensure_ascii=False).encode() + b"\n"

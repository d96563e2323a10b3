"""Read traces of finished pipelines by name and question id, in either format."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from reflectune.core.durable import read_rows
from reflectune.core.errors import UserError
from reflectune.inference.trace import Trace, from_row
from reflectune.inference.trace_files.layout import is_questions
from reflectune.inference.trace_files.reading import TraceFile


def trace_files(folder: Path) -> dict[str, Path]:
    """Return the files of finished pipelines and stages, by name."""
    tables = {path.stem: path for path in folder.glob("*.parquet") if is_questions(path)}
    return dict(sorted({**{path.stem: path for path in folder.glob("*.jsonl")}, **tables}.items()))


def read_traces(path: Path) -> Iterator[Trace]:
    """Yield the whole traces of a file, with one row group or line in memory.

    Raises:
        UserError: It is damaged.
    """
    return iter(TraceFile(path)) if path.suffix == ".parquet" else map(from_row, read_rows(path))


def find_trace(path: Path, question_id: str) -> Trace | None:
    """Return the trace of a question; None if the file has none.

    Raises:
        UserError: The file is damaged.
    """
    if path.suffix == ".parquet":
        return TraceFile(path).read([question_id]).get(question_id)
    return next((from_row(row) for row in read_rows(path) if row["id"] == question_id), None)


def find_traces(files: dict[str, Path], question_id: str) -> dict[str, Trace]:
    """Return a question's traces by pipeline.

    Raises:
        UserError: No pipeline has one, or a file is damaged.
    """
    by_pipeline = {name: trace for name, path in files.items() if (trace := find_trace(path, question_id)) is not None}
    if not by_pipeline:
        raise UserError(
            f"no trace of question {question_id} among those of {', '.join(files)}: it was not asked, or has another id"
        )
    return by_pipeline

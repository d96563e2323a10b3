"""Read traces of finished pipelines by name and question id, in either format."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from reflectune.core.config import Settings, cross_check, setting
from reflectune.core.durable import read_rows
from reflectune.core.errors import UserError
from reflectune.inference.trace import Trace, from_row
from reflectune.inference.trace_files.columns import TraceColumns
from reflectune.inference.trace_files.layout import is_questions
from reflectune.inference.trace_files.reading import TraceFile


class ShowTraceConfig(Settings):
    """Which evaluation's traces to show, and how."""

    evaluation: str = setting(
        "", "folder that evaluate wrote, with traces/ in it", needed="a folder that evaluate wrote"
    )
    pipeline: str = setting("", "whose traces; of all pipelines and stages if unset")
    question: str = setting("", "the question's id; all questions, a line of JSON each, if unset")
    as_json: bool = setting(False, "show the whole trace as JSON")

    @cross_check
    def show_trace_problems(self) -> list[str]:
        """Return the problems of keys that must fit each other, and of files that they name."""
        if not self.evaluation:
            return []
        kept = trace_files(Path(self.evaluation, "traces"))
        if not kept:
            return [f"`evaluation`: {self.evaluation} has no finished pipeline in traces/"]
        if self.pipeline and self.pipeline not in kept:
            return [f"`pipeline`: {self.evaluation} has no traces of {self.pipeline}; one of {', '.join(kept)}"]
        return []

    def files(self) -> dict[str, Path]:
        """The files to read, by pipeline."""
        kept = trace_files(Path(self.evaluation, "traces"))
        return {self.pipeline: kept[self.pipeline]} if self.pipeline else kept


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


def traces_of(path: Path, question_ids: Collection[str]) -> Mapping[str, Trace]:
    """Return the traces of those of these questions that a file has, by id; in Parquet they stay on disk.

    Raises:
        UserError: The file is damaged.
    """
    selected = set(question_ids)
    if path.suffix == ".parquet":
        file = TraceFile(path)
        return TraceColumns(file, [question_id for question_id in file.ids if question_id in selected])
    return {row["id"]: from_row(row) for row in read_rows(path) if row["id"] in selected}


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

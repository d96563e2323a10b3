"""Questions through all grid points, batch by batch: each batch meets every point before its readings are forgotten."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from PIL import Image

from reflectune.core.launching import launch_processes
from reflectune.core.resumable import run_to_file
from reflectune.core.types import Question
from reflectune.inference.running.runner import open_questions
from reflectune.inference.scoring.scores import TraceScorer
from reflectune.inference.sweeps.caching import CacheStats
from reflectune.inference.sweeps.judging import Judge
from reflectune.inference.sweeps.outcomes import GridOutcomes, PointOutcome, Row, outcome, to_row
from reflectune.inference.sweeps.points import Point
from reflectune.inference.trace import Trace


class PointRunner(Protocol):
    """What points are run with."""

    def run(self, point: Point, questions: Sequence[Question], images: Sequence[Image.Image]) -> dict[str, Trace]:
        """The traces of those questions that the point's pipeline takes, by id."""
        ...

    def stats(self) -> CacheStats:
        """What was asked of all models so far, and done."""
        ...

    def forget(self) -> None:
        """Drop what was read of the questions so far."""
        ...


@dataclass(frozen=True)
class GridRun:
    """The points to run, how they are scored, and the log that keeps the rows.

    Attributes:
        points: The grid points.
        measure: What an answer is worth.
        judge: Which probabilities a question's traces (by point) hold, and whether what they speak of is so.
        image_root: Folder that image paths are relative to.
        path: The log of finished questions.
        fingerprint: Hash of everything that determines a row.
        source: The data set's fingerprint.
        batch_questions: Questions in a batch.
        on_error: What to do with a question whose image or text is bad.
    """

    points: Sequence[Point]
    measure: TraceScorer
    judge: Judge
    image_root: Path
    path: Path
    fingerprint: str
    source: str = ""
    batch_questions: int = 8
    on_error: Literal["stop", "skip"] = "stop"


def run_grid(grid_run: GridRun, questions: Sequence[Question], runner: PointRunner) -> tuple[GridOutcomes, CacheStats]:
    """Take all questions that are not finished through all points, shared out among the processes.

    A batch is always run whole and in the same company, so that an interrupted run, or one on another number of
    processes, ends with the same rows (see `run_batches`).

    Args:
        grid_run: The points to run, how they are scored, and where the log is.
        questions: The questions.
        runner: Runs a point's pipeline on a batch.

    Raises:
        UserError: A question is bad (and `on_error` is "stop"), or the log is of other settings.
    """
    ordered = sorted(questions, key=lambda question: question.id)
    rows, _ = run_to_file(
        grid_run.path,
        ordered,
        lambda batch: _rows(grid_run, batch, runner).items(),
        grid_run.fingerprint,
        grid_run.batch_questions,
        launch_processes(),
    )
    counted = [rows[question.id]["passes"] for question in ordered]
    stats = CacheStats(sum(each["asked"] for each in counted), sum(each["done"] for each in counted))
    ordered_rows = {question.id: rows[question.id] for question in ordered}
    return GridOutcomes(ordered, ordered_rows, grid_run.measure, grid_run.source), stats


def _rows(grid_run: GridRun, batch: Sequence[Question], runner: PointRunner) -> dict[str, Row]:
    """A row for each question of a batch; the first one holds what the batch cost."""
    good, images, errors = open_questions(batch, grid_run.image_root, grid_run.on_error)
    before = runner.stats()
    runs: dict[Any, dict[str, Trace]] = {}
    for point in grid_run.points:
        if good and point.run_key not in runs:
            runs[point.run_key] = runner.run(point, good, images)
    runner.forget()
    grid_run.measure.read(good, runs.values())
    after = runner.stats()
    passes = {"asked": after.requested - before.requested, "done": after.done - before.done}
    rows: dict[str, Row] = {}
    for question in batch:
        if question.id in errors:
            failed = PointOutcome(0.0, retrieved=False, read=0, answer="", problem=errors[question.id])
            rows[question.id] = to_row({point.name: failed for point in grid_run.points}, [])
        else:
            traces = {p.name: runs[p.run_key][question.id] for p in grid_run.points if question.id in runs[p.run_key]}
            made = {
                p.name: outcome(question, traces[p.name], grid_run.measure, p.ranking)
                for p in grid_run.points
                if p.name in traces
            }
            rows[question.id] = to_row(made, grid_run.judge(question, traces, grid_run.measure))
        rows[question.id]["passes"] = passes if len(rows) == 1 else {"asked": 0, "done": 0}
    grid_run.measure.forget()
    return rows

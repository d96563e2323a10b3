"""Run questions through all grid points batch by batch, so that each batch is cached only once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reflectune.core.launching import launch_processes
from reflectune.core.resumable import run_to_file
from reflectune.core.types import Question
from reflectune.formats.dataset import image_roots
from reflectune.inference.running.opening import OnError, open_questions, question_hash
from reflectune.inference.running.runner import run_batch_or_each
from reflectune.inference.scoring.scores import TraceScorer
from reflectune.inference.sweeps.caching import CacheStats
from reflectune.inference.sweeps.judging import Judge
from reflectune.inference.sweeps.outcomes import GridOutcomes, PointOutcome, outcome, to_row
from reflectune.inference.sweeps.points import Point
from reflectune.inference.sweeps.runner import GridRunner
from reflectune.inference.trace import Trace


@dataclass(frozen=True)
class GridRun:
    """Grid points, their scorer, and the log that keeps the rows.

    Attributes:
        points: The grid points.
        measure: Scorer of answers.
        judge: Returns the checked probabilities of a question's traces by point.
        image_root: Folder that image paths are relative to.
        path: The log of finished questions.
        fingerprint: Hash of everything that determines a row.
        batch_questions: Questions in a batch.
        on_error: Stop at a question with a bad image or text, or count it as wrong.
    """

    points: Sequence[Point]
    measure: TraceScorer
    judge: Judge
    image_root: Path
    path: Path
    fingerprint: str
    batch_questions: int = 8
    on_error: OnError = "stop"


def run_grid(grid_run: GridRun, questions: Sequence[Question], runner: GridRunner) -> tuple[GridOutcomes, CacheStats]:
    """Run the unfinished questions through all points, divided among the processes.

    Batches are the same on any number of processes, so an interrupted run ends with the same rows (see `run_batches`).
    Questions that failed or were edited are asked again.

    Args:
        grid_run: The points, their scorer, and the log.
        runner: Runs a point's pipeline on a batch.

    Returns:
        The outcomes, and the counts of forward passes, those of earlier runs included.

    Raises:
        UserError: A question is bad (and `on_error` is "stop"), or the log has other settings.
    """
    ordered = sorted(questions, key=lambda question: question.id)
    roots = image_roots(grid_run.image_root)
    hashes = {question.id: question_hash(question, roots) for question in questions}
    rows, _ = run_to_file(
        grid_run.path,
        ordered,
        lambda batch: ((key, {**row, "question_hash": hashes[key]}) for key, row in _rows(grid_run, batch, runner)),
        grid_run.fingerprint,
        grid_run.batch_questions,
        launch_processes(),
        is_failed=lambda row: "error" in row or row["question_hash"] != hashes.get(row["id"], row["question_hash"]),
    )
    counted = [rows[question.id]["passes"] for question in ordered]
    stats = CacheStats(sum(each["asked"] for each in counted), sum(each["done"] for each in counted))
    ordered_rows = {question.id: rows[question.id] for question in ordered}
    return GridOutcomes(ordered, ordered_rows, grid_run.measure), stats


def _rows(grid_run: GridRun, batch: Sequence[Question], runner: GridRunner) -> list[tuple[str, dict[str, Any]]]:
    """Return a row for each question of a batch, by id; see `run_batch_or_each`."""

    def failed(question_id: str, problem: str) -> tuple[str, dict[str, Any]]:
        runner.forget()
        grid_run.measure.forget()
        return question_id, {**_failed_row(grid_run, problem), "passes": {"asked": 0, "done": 0}}

    return run_batch_or_each(batch, lambda some: list(_made(grid_run, some, runner).items()), failed, grid_run.on_error)


def _failed_row(grid_run: GridRun, problem: str) -> dict[str, Any]:
    outcome_of_all = PointOutcome(0.0, retrieved=False, read=0, answer="", problem=problem)
    return {**to_row({point.name: outcome_of_all for point in grid_run.points}, []), "error": problem}


def _made(grid_run: GridRun, batch: Sequence[Question], runner: GridRunner) -> dict[str, dict[str, Any]]:
    """Return a row for each question of a batch. The first row holds the batch's counts of forward passes."""
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
    rows: dict[str, dict[str, Any]] = {}
    for question in batch:
        if question.id in errors:
            rows[question.id] = _failed_row(grid_run, errors[question.id])
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

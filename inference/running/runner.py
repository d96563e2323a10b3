"""Run a pipeline over many questions: sharded, resumable, with a rate and an ETA."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Literal

from accelerate import PartialState
from PIL import Image

from reflectune.core.durable import RowLog, read_rows, write_atomically
from reflectune.core.errors import UserError
from reflectune.core.images import load_image
from reflectune.core.paths import Roots
from reflectune.core.progress import progress_bar
from reflectune.core.types import Question
from reflectune.data_builders.dataset import image_roots
from reflectune.inference.pipelines.base import Pipeline
from reflectune.inference.trace import Trace, from_row, to_row

Batch = Sequence[Question]


def run_pipeline(
    name: str,
    build: Callable[[], Pipeline],
    questions: Sequence[Question],
    *,
    image_root: Path,
    folder: Path,
    fingerprint: str,
    batch_questions: int,
    on_error: Literal["stop", "skip"],
) -> dict[str, Trace]:
    """Answer all questions that are not answered yet; return all traces, by question id.

    Questions are sorted by id and cut into batches; batch i is the work of process i mod n. A batch is always run whole
    and in the same company, so that an interrupted run, or one on another number of processes, ends with the same
    traces (but for their timings). Each process appends finished rows to a file of its own; the first one merges
    them into `folder/<name>.jsonl`, in the order of the questions.

    Args:
        name: The pipeline's name, which names the files.
        build: Makes the pipeline; not called if nothing is left to do.
        questions: The questions; their ids must be unique.
        image_root: The data set's folder, which image paths are relative to (see `dataset.image_roots`).
        folder: Where traces are kept.
        fingerprint: Hash of everything that determines an answer.
        batch_questions: Questions in a batch.
        on_error: What to do with a question whose image or text is bad.

    Raises:
        UserError: Two questions share an id, a question is bad (and `on_error` is "stop"), or `folder` holds traces
            of other settings.
    """
    ordered = sorted(questions, key=lambda question: question.id)

    def answer(batches: Sequence[Batch], log: RowLog, done: Collection[str], total: int) -> None:
        _answer(build(), batches, log, done, image_root, on_error, name, total)

    rows, _ = run_sharded(name, ordered, answer, folder, fingerprint, batch_questions)
    return {question.id: from_row(rows[question.id]) for question in ordered}


def run_sharded(
    name: str,
    questions: Sequence[Question],
    answer: Callable[[Sequence[Batch], RowLog, Collection[str], int], None],
    folder: Path,
    fingerprint: str,
    batch_questions: int,
) -> tuple[dict[str, dict], int]:
    """Have all processes answer the questions that have no row yet, each a share of the batches.

    Args:
        name: Names the files: `folder/<name>.jsonl`, and a process's part while there is something left to do.
        questions: In order of their ids, which must be unique.
        answer: Given this process's batches that lack a row, the log to append rows to, the ids that have one already,
            and how many questions this process has in all; not called if nothing is left to do.
        folder: Where rows are kept.
        fingerprint: Hash of everything that determines a row.
        batch_questions: Questions in a batch.

    Returns:
        All rows, by question id; and of how many questions all processes together had to run the batch.

    Raises:
        UserError: Two questions share an id, or `folder` holds rows of other settings.
    """
    state = PartialState()
    _check_unique(questions)
    merged, parts = folder / f"{name}.jsonl", folder / "parts"
    whole, done = _finished(merged, fingerprint), _finished_parts(parts, name, fingerprint)
    state.wait_for_everyone()  # all have read the parts before one of them writes
    if not done and all(question.id in whole for question in questions):
        return whole, 0
    done = {**whole, **done}

    batches = [questions[i : i + batch_questions] for i in range(0, len(questions), batch_questions)]
    is_left = [any(question.id not in done for question in batch) for batch in batches]
    places = range(state.process_index, len(batches), state.num_processes)
    mine, todo = [batches[i] for i in places], [batches[i] for i in places if is_left[i]]
    if todo:
        with RowLog(parts / f"{name}.{state.process_index}.jsonl", fingerprint) as log:
            answer(todo, log, done, sum(map(len, mine)))
    state.wait_for_everyone()
    if state.is_main_process:
        _merge(merged, parts, name, fingerprint, questions)
    state.wait_for_everyone()
    return _finished(merged, fingerprint), sum(len(batch) for batch, left in zip(batches, is_left, strict=True) if left)


def open_questions(
    questions: Sequence[Question], image_root: Path, on_error: Literal["stop", "skip"]
) -> tuple[list[Question], list[Image.Image], dict[str, str]]:
    """Check a batch and load its images.

    Returns:
        The good questions, their images, and why each bad question is bad, by id.

    Raises:
        UserError: A question is bad and `on_error` is "stop".
    """
    roots = image_roots(image_root)
    good, images, errors = [], [], {}
    for question in questions:
        try:
            images.append(_open(question, roots))
            good.append(question)
        except UserError as error:
            if on_error == "stop":
                raise
            errors[question.id] = str(error)
    return good, images, errors


def _open(question: Question, roots: Roots) -> Image.Image:
    if not question.text.strip():
        raise UserError(f"question {question.id} has no text; mend or remove the row, or set on_error: skip")
    if not question.image:
        raise UserError(f"question {question.id} has no image; mend or remove the row, or set on_error: skip")
    return load_image(question.image, root=roots, needed_by=f"question {question.id}")


def _answer(
    pipeline: Pipeline,
    batches: Sequence[Batch],
    log: RowLog,
    done: Collection[str],
    image_root: Path,
    on_error: Literal["stop", "skip"],
    name: str,
    total: int,
) -> None:
    left, hidden = sum(map(len, batches)), not PartialState().is_main_process
    with progress_bar(total=total, initial=total - left, desc=name, unit="question", disable=hidden) as progress:
        for batch in batches:
            good, images, errors = open_questions(batch, image_root, on_error)
            traces = pipeline.run(good, images) if good else []
            traces += [Trace(question_id=key, pipeline=name, error=message) for key, message in errors.items()]
            for trace in traces:
                if trace.question_id not in done:
                    log.append(trace.question_id, to_row(trace))
            progress.update(len(batch))


def _check_unique(ordered: Sequence[Question]) -> None:
    for first, second in itertools.pairwise(ordered):
        if first.id == second.id:
            raise UserError(f"two questions have the id {first.id}; ids must be unique over the splits of a run")


def _finished(path: Path, fingerprint: str) -> dict[str, dict]:
    """The whole rows of a trace file, by question id; none if there is no file."""
    if not path.exists():
        return {}
    with path.open("rb") as file:
        header = file.readline()
    if header.endswith(b"\n") and json.loads(header).get("fingerprint") != fingerprint:
        raise UserError(
            f"{path} was written with other settings, another model, index or data set; choose another output folder, "
            "or delete it to start again"
        )
    return {row["id"]: row for row in read_rows(path)}


def _finished_parts(parts: Path, name: str, fingerprint: str) -> dict[str, dict]:
    rows: dict[str, dict] = {}
    for path in sorted(parts.glob(f"{name}.*.jsonl")):
        rows.update(_finished(path, fingerprint))
    return rows


def _merge(merged: Path, parts: Path, name: str, fingerprint: str, ordered: Sequence[Question]) -> None:
    """Put the parts' rows into one file, in the order of question ids, and remove the parts."""
    rows = {**_finished(merged, fingerprint), **_finished_parts(parts, name, fingerprint)}
    missing = [question.id for question in ordered if question.id not in rows]
    if missing:
        raise RuntimeError(f"{name}: no trace of {len(missing)} questions, the first being {missing[0]}")
    lines = [{"fingerprint": fingerprint}, *(rows[key] for key in sorted(rows))]
    write_atomically(merged, "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))
    for path in parts.glob(f"{name}.*.jsonl"):
        path.unlink()
    if parts.exists() and not any(parts.iterdir()):
        parts.rmdir()

"""Run a pipeline over many questions: sharded and resumable."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, TypeVar

from reflectune.core.config import Settings, setting
from reflectune.core.errors import UnusableInput, UserError
from reflectune.core.images import Images
from reflectune.core.images_ahead import ImagesAhead, Prepare
from reflectune.core.launching import launch_processes
from reflectune.core.resumable import Row
from reflectune.core.types import Question
from reflectune.core.values import output_of
from reflectune.formats.dataset import image_roots
from reflectune.inference.operators.trajectory import TrajectoryPipeline
from reflectune.inference.pipelines.base import Pipeline
from reflectune.inference.running.opening import OnError, images_of, open_questions, question_hash
from reflectune.inference.trace import Trace, to_row
from reflectune.inference.trace_files.columns import StoredTraces
from reflectune.inference.trace_files.keeping import TraceForm, TraceStore

Made = TypeVar("Made")


class RunSettings(Settings):
    """Batches, errors and storage of the traces of a run."""

    output: Annotated[str, output_of()] = setting(
        "",
        "folder for traces/, metrics.json and report.html",
        needed="a folder for traces/, metrics.json and report.html",
    )
    batch_questions: int = setting(8, "questions answered together", ge=1)
    traces: TraceForm = setting(
        "auto", "jsonl: text to read and grep; parquet: a twentieth of its size; auto: parquet beyond 64 MiB of JSONL"
    )
    on_error: OnError = setting(
        "stop", "a question with a bad image, no text or too long a text: stop, or count it as wrong and list it"
    )


def run_pipeline(
    name: str,
    build: Callable[[], Pipeline],
    questions: Sequence[Question],
    *,
    image_root: Path,
    folder: Path,
    fingerprint: str,
    batch_questions: int | None,
    on_error: OnError,
    form: TraceForm = "jsonl",
    reopen: Callable[[Mapping[str, float]], bool] = lambda limit: False,
    takes_images: bool = False,
    prepare: Callable[[], Sequence[Prepare]] = tuple,
) -> StoredTraces:
    """Answer all unanswered questions; return all traces, by question id.

    Questions are sorted by id and cut into batches that all processes share. An interrupted run, or one on another
    number of processes, ends with the same traces except for timings (see `run_batches`). A later run repeats questions
    that failed or were edited.

    Args:
        name: The pipeline's name, used in file names.
        build: Builds the pipeline; not called if no question is left.
        questions: The questions; their ids must be unique.
        image_root: The data set's folder, which image paths are relative to (see `dataset.image_roots`).
        folder: Folder of the traces (see `TraceStore`), which all processes share (see `launch_processes`).
        fingerprint: Hash of everything that determines an answer.
        batch_questions: Questions in a batch; None for a pipeline whose models are all served: there are no batches.
        on_error: Behaviour for a question whose image or text can't be used.
        form: Format of the traces. Parquet traces stay on disk; `with_texts` reads them with their texts.
        reopen: Returns True for a budget (`Trace.limit`) whose traces are computed again.
        takes_images: True if the pipeline takes questions with several images.
        prepare: Returns functions to call with the images of the next batch, in threads, while a batch is answered.

    Raises:
        UserError: Questions share an id, one can't be used under `on_error: stop`, or `folder` holds traces of other
            settings.
    """
    pipeline, failed, roots = functools.cache(build), functools.partial(_failed, name), image_roots(image_root)
    reader = "" if takes_images else f"the pipeline {name}"
    opened = ImagesAhead(functools.partial(images_of, roots=roots), prepare)
    hashes = {question.id: question_hash(question, roots) for question in questions}

    def answer(batch: Sequence[Question]) -> list[Trace]:
        built = pipeline()
        texts = [question for question in batch if _is_text(question, built)]
        shown = [question for question in batch if question not in texts]
        good, images, errors = open_questions(shown, image_root, on_error, reader, opened.take)
        traces = built.run(good, images) if good else []
        if texts and isinstance(built, TrajectoryPipeline):
            traces += built.run(texts, [None] * len(texts))
        return [*traces, *(failed(key, message) for key, message in errors.items())]

    def rows(batch: Sequence[Question]) -> Iterator[tuple[str, Row]]:
        if batch_questions is None:
            traces = _streamed(name, pipeline(), batch, image_root, on_error)
        else:
            traces = iter(run_batch_or_each(batch, answer, failed, on_error))
        for trace in traces:
            row = to_row(dataclasses.replace(trace, question_hash=hashes[trace.question_id]))
            yield trace.question_id, row

    def is_outdated(row: Row) -> bool:
        found = row.get("question_hash", "")
        return reopen(row.get("limit", {})) or hashes.get(row["question_id"], found) != found

    def begin(batch: Sequence[Question]) -> None:
        opened.begin([q for q in batch if q.image and (takes_images or not q.more_images)])

    store = TraceStore(folder, name, fingerprint, form)
    ordered = sorted(questions, key=lambda question: question.id)
    with opened:
        return store.fill(ordered, rows, batch_questions, launch_processes(), is_outdated=is_outdated, ahead=begin)


def _streamed(
    name: str, built: Pipeline, asked: Iterable[Question], image_root: Path, on_error: OnError
) -> Iterator[Trace]:
    """Yield the traces of a served pipeline as its trajectories end, then those of questions with unusable images."""
    if not isinstance(built, TrajectoryPipeline):
        raise ValueError(f"{name} has no trajectories")
    errors: dict[str, str] = {}

    def opened() -> Iterator[tuple[Question, Images]]:
        for question in asked:
            if _is_text(question, built):
                yield question, None
            else:
                good, images, unreadable = open_questions([question], image_root, on_error, reader="")
                errors.update(unreadable)
                yield from zip(good, images, strict=True)

    yield from built.stream(opened(), lambda question, error: _failed(name, *_problem(question, error, on_error)))
    yield from (_failed(name, key, message) for key, message in errors.items())


def _is_text(question: Question, built: Pipeline) -> bool:
    """Return True for a question without an image that a pipeline answers."""
    takes_texts = isinstance(built, TrajectoryPipeline) and built.takes_texts
    return takes_texts and bool(question.text.strip()) and not question.image


def _failed(name: str, question_id: str, message: str) -> Trace:
    return Trace(question_id=question_id, pipeline=name, error=message)


def run_batch_or_each(
    batch: Sequence[Question],
    make: Callable[[Sequence[Question]], Sequence[Made]],
    failed: Callable[[str, str], Made],
    on_error: OnError,
) -> list[Made]:
    """Compute the results of a batch; if an input can't be used, compute them question by question.

    Args:
        batch: The questions.
        make: Computes the results of questions.
        failed: Returns the result of a question that can't be used, given its id and the error.
        on_error: Behaviour for such a question.

    Raises:
        UserError: A question can't be used, and `on_error` is "stop". The message names it.
    """
    try:
        return list(make(batch))
    except UnusableInput as error:
        if error.question_id and on_error == "stop":
            raise
        if len(batch) > 1:
            return [made for question in batch for made in run_batch_or_each([question], make, failed, on_error)]
        return [failed(*_problem(batch[0], error, on_error))]


def _problem(question: Question, error: UnusableInput, on_error: OnError) -> tuple[str, str]:
    """Return the id of a question that can't be used, and its problem; or raise the problem.

    Raises:
        UserError: `on_error` is "stop".
    """
    problem = str(error) if error.question_id else f"question {question.id}: {error}"
    if on_error == "stop":
        raise error if error.question_id else UserError(f"{problem}; `on_error: skip` leaves it out") from error
    return question.id, problem

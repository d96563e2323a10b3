"""Run a pipeline over many questions: sharded and resumable."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal

from PIL import Image

from reflectune.core.config import Settings, setting
from reflectune.core.errors import UserError
from reflectune.core.images import load_image
from reflectune.core.launching import launch_processes
from reflectune.core.paths import Roots
from reflectune.core.resumable import Row
from reflectune.core.types import Question
from reflectune.core.values import output_of
from reflectune.formats.dataset import image_roots
from reflectune.inference.operators.trajectory import TrajectoryPipeline
from reflectune.inference.pipelines.base import Pipeline
from reflectune.inference.trace import Trace, to_row
from reflectune.inference.trace_files.keeping import Reopen, TraceForm, TraceStore


class RunSettings(Settings):
    """Batches, errors and storage of the traces of a run."""

    output: Annotated[str, output_of()] = setting(
        "",
        "folder for traces/, metrics.json and report.html",
        needed="a folder for traces/, metrics.json and report.html",
    )
    batch_questions: int = setting(8, "questions answered together", ge=1)
    traces: TraceForm = setting(
        "auto", "jsonl: text to read and grep; parquet: a twentieth of that; auto: parquet beyond 64 MiB of JSONL"
    )
    on_error: Literal["stop", "skip"] = setting(
        "stop", "a question with a bad image or no text: stop, or count it as wrong and list it"
    )


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
    form: TraceForm = "jsonl",
    reopen: Reopen | None = None,
) -> Mapping[str, Trace]:
    """Answer all unanswered questions; return all traces, by question id.

    Questions are sorted by id and cut into batches that all processes share. An interrupted run, or one on another
    number of processes, ends with the same traces except for timings (see `run_batches`).

    Args:
        name: The pipeline's name, used in file names.
        build: Builds the pipeline; not called if no question is left.
        questions: The questions; their ids must be unique.
        image_root: The data set's folder, which image paths are relative to (see `dataset.image_roots`).
        folder: Folder of the traces (see `TraceStore`).
        fingerprint: Hash of everything that determines an answer.
        batch_questions: Questions in a batch.
        on_error: Behaviour for a question whose image or text is bad.
        form: Format of the traces. Parquet traces stay on disk, without passages' text (see `TraceColumns`).
        reopen: Returns True if a trace that this budget (`Trace.limit`) ended is computed again.

    Raises:
        UserError: Two questions share an id, a question is bad (and `on_error` is "stop"), or `folder` holds traces of
            other settings.
    """
    ordered = sorted(questions, key=lambda question: question.id)

    pipeline = functools.cache(build)

    def answer(batch: Sequence[Question]) -> Iterator[tuple[str, Row]]:
        built = pipeline()
        texts: list[Question] = []
        if isinstance(built, TrajectoryPipeline) and built.takes_texts:
            texts = [question for question in batch if question.text.strip() and not question.image]
        shown = [question for question in batch if question not in texts]
        good, images, errors = open_questions(shown, image_root, on_error)
        traces = built.run(good, images) if good else []
        if texts and isinstance(built, TrajectoryPipeline):
            traces += built.run(texts, [None] * len(texts))
        traces += [Trace(question_id=key, pipeline=name, error=message) for key, message in errors.items()]
        return ((trace.question_id, to_row(trace)) for trace in traces)

    store = TraceStore(folder, name, fingerprint, form)
    return store.fill(ordered, answer, batch_questions, launch_processes(), reopen=reopen)


def open_questions(
    questions: Sequence[Question], image_root: Path, on_error: Literal["stop", "skip"]
) -> tuple[list[Question], list[Image.Image], dict[str, str]]:
    """Check a batch and load its images.

    Returns:
        The good questions, their images, and the error of each bad question, by id.

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
        raise UserError(f"question {question.id} has no text; fix or remove the row, or set on_error: skip")
    if not question.image:
        raise UserError(
            f"question {question.id} has no image; fix or remove the row, set on_error: skip, or run mi_rag or pmsr"
        )
    return load_image(question.image, root=roots, needed_by=f"question {question.id}")

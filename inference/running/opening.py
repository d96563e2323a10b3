"""Open the images of questions, and refuse or list those that can't be used."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

from reflectune.core.errors import UserError
from reflectune.core.hashing import fingerprint
from reflectune.core.images import BadImage, Images, load_image
from reflectune.core.paths import Roots
from reflectune.core.rows import to_row
from reflectune.core.types import Question
from reflectune.formats.dataset import image_roots
from reflectune.formats.questions import check_one_image
from reflectune.inference.trace import TextlessTrace

OnError = Literal["stop", "skip"]


def open_questions(
    questions: Sequence[Question],
    image_root: Path,
    on_error: OnError,
    reader: str = "this command",
    opened: Callable[[Question], Images] | None = None,
) -> tuple[list[Question], list[Any], dict[str, str]]:
    """Check a batch and load its images.

    Args:
        questions: The questions.
        image_root: The data set's folder.
        on_error: Behaviour for a bad question.
        reader: Name of what reads one image a question, for the error; "" if it reads several.
        opened: Returns a question's images, opened ahead; None opens them now.

    Returns:
        The good questions, the image of each or a tuple of several, and the error of each bad question, by id.

    Raises:
        UserError: A question is bad and `on_error` is "stop".
    """
    roots = image_roots(image_root)
    good, images, errors = [], [], {}
    for question in questions:
        try:
            if reader:
                check_one_image(question, reader)
            images.append(opened(question) if opened else images_of(question, roots))
            good.append(question)
        except UserError as error:
            if on_error == "stop":
                raise
            errors[question.id] = str(error)
    return good, images, errors


def question_hash(question: Question, roots: Sequence[Path]) -> str:
    """Hash a question without its split. The folder of its images doesn't count: they may move.

    Args:
        question: The question.
        roots: The folders that its images may lie in (`image_roots`).
    """
    folders_and_names = map(os.path.split, question.images)
    names = [f"{_without_root(folder, tuple(roots))}/{name}" for folder, name in folders_and_names]
    return fingerprint({**to_row(question), "split": "", "image": names, "more_images": ()})


@functools.lru_cache(maxsize=1024)
def _without_root(folder: str, roots: tuple[Path, ...]) -> str:
    """Return a folder relative to the last root that it lies in; as it is if it lies in none."""
    path = Path(roots[0], folder)
    return next((str(path.relative_to(root)) for root in reversed(roots) if path.is_relative_to(root)), str(path))


def is_current(trace: TextlessTrace, question: Question, roots: Sequence[Path]) -> bool:
    """Return True unless a question's row was edited after a run stored its trace."""
    return trace.question_hash in ("", question_hash(question, roots))


def images_of(question: Question, roots: Roots) -> Images:
    """Load the image of a question, or a tuple of several.

    Raises:
        UserError: The question has no text or no image, or an image can't be used.
    """
    if not question.text.strip():
        raise UserError(f"question {question.id} has no text; fix or remove the row, or set on_error: skip")
    if not question.image:
        raise UserError(
            f"question {question.id} has no image; fix or remove the row, set on_error: skip, or run mi_rag or pmsr"
        )
    try:
        images = tuple(load_image(path, root=roots, needed_by=f"question {question.id}") for path in question.images)
    except BadImage as error:
        error.question_id = question.id
        raise
    return images if len(images) > 1 else images[0]

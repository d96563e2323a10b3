"""Validate questions, and select held-out ones."""

from __future__ import annotations

import math
from typing import Final, get_args

from reflectune.core.errors import UnusableInput
from reflectune.core.hashing import fingerprint
from reflectune.core.types import AnswerType, Question
from reflectune.core.values import LONGEST_NAME, SPLIT_NAME

ANSWER_TYPES: Final = get_args(AnswerType)

Problem = tuple[str, str, str]
"""Field, finding and fix."""


def malformed(question: Question) -> Problem | None:
    """Return the first problem that makes a question unreadable, or None.

    An empty text and a missing image are allowed here; they are reported when the question is asked. Missing answers
    are allowed, as in test sets. So is a descending range: InfoSeek has such ranges for numbers below zero, and its
    official score accepts no number for them.
    """
    for field, value, fix in (
        ("id", question.id, "give the row an id"),
        ("text", question.text, "give the row a question"),
        ("image", question.image, "give the path of the image"),
    ):
        if not isinstance(value, str) or (field == "id" and not value.strip()):
            return field, _found(value), fix
    if not all(isinstance(path, str) and path for path in question.more_images):
        return "more_images", "holds a value that is not a path", "give paths of images"
    if question.more_images and not question.image:
        return "image", "is empty, and `more_images` is not", "the first image is `image`"
    if question.answer_type not in ANSWER_TYPES:
        return "answer_type", f"is {question.answer_type!r}", f"it is one of {', '.join(ANSWER_TYPES)}"
    if not all(isinstance(answer, str) for answer in question.answers):
        return "answers", "holds a value that is not a text", "give texts"
    if question.range is not None:
        low, high = question.range
        if not all(isinstance(end, (int, float)) and math.isfinite(end) for end in (low, high)):
            return "range", f"is {low!r} to {high!r}", "it should be the lowest and the highest accepted number"
    return None


def unusable(question: Question) -> Problem | None:
    """Return the first problem of `malformed`, an empty text, or an invalid name of a split, or None."""
    if problem := malformed(question):
        return problem
    if not question.text.strip():
        return "text", "is empty", "give the row a question"
    if not SPLIT_NAME.fullmatch(question.split):
        return "split", f"is {question.split!r}", "a split's name consists of letters, digits, `_`, `-` and `.`"
    if len(question.split) > LONGEST_NAME:
        return "split", f"has {len(question.split)} letters", f"a split's name has at most {LONGEST_NAME}"
    return None


def check_one_image(question: Question, reader: str) -> None:
    """Refuse a question with several images.

    Args:
        question: The question.
        reader: Name of what reads one image, for the error.

    Raises:
        UnusableInput: It has several.
    """
    if question.more_images:
        raise UnusableInput(
            f"question {question.id} has {len(question.images)} images, and {reader} reads one; leave it out, or "
            "convert its data set with one image a question",
            question.id,
        )


def is_held_out(question: Question, share: float) -> bool:
    """Return True for a share of the entities, by a hash of the question's first one, or of its id without one."""
    return int(fingerprint((question.entity_ids or (question.id,))[0])[:8], 16) < share * 16**8


def _found(value: object) -> str:
    return "is empty" if isinstance(value, str) or value is None else f"is {type(value).__name__}"

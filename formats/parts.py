"""Parts of a split: its questions divided by their entity.

A model that labels its own data must not have been trained on them, since it answers known questions from any document.
It is tuned on one part, and probed on a different one.
"""

from __future__ import annotations

import hashlib
import re
from typing import Annotated, Final

from reflectune.core.types import Question
from reflectune.core.values import checked_by, short

_FORM: Final = re.compile(r"([1-9]\d{0,2})/([1-9]\d{0,2})")


def part_problem(value: str) -> str:
    """Return the problem of a part's name, to be read after its key; "" if it is valid or empty."""
    form = _FORM.fullmatch(value)
    if not value or (form and int(form[1]) <= int(form[2])):
        return ""
    return f"must be like 1/2, the first of two parts, found `{short(value)}`"


PartName = Annotated[str, checked_by(part_problem)]


def is_in_part(question: Question, part: str) -> bool:
    """Return True if a question falls into a part.

    All questions about one entity (the first that the image shows) fall into the same part; without an entity, all
    about one image. A hash decides, so that added questions move none. Each part has about the same number of entities.

    Args:
        question: The question.
        part: E.g. `1/2`, the first of two; "" for all.

    Raises:
        ValueError: `part_problem` finds a problem.
    """
    if not part:
        return True
    if problem := part_problem(part):
        raise ValueError(f"a part {problem}")
    number, parts = map(int, part.split("/"))
    subject = next(iter(question.entity_ids), question.image or question.id)
    return int.from_bytes(hashlib.sha256(subject.encode()).digest()[:8]) % parts == number - 1

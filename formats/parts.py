"""Parts of a split: its questions divided by what they are about.

A model that labels its own data must not have been trained on them: what it knows by heart it answers from any
document. It is tuned on one part, and probed on another.
"""

from __future__ import annotations

import hashlib
import re
from typing import Annotated, Final

from reflectune.core.types import Question
from reflectune.core.values import checked_by, short

_FORM: Final = re.compile(r"([1-9]\d{0,2})/([1-9]\d{0,2})")


def part_problem(value: str) -> str:
    """What is wrong with the name of a part, to be read after its key; "" if nothing is, or if it names none."""
    form = _FORM.fullmatch(value)
    if not value or (form and int(form[1]) <= int(form[2])):
        return ""
    return f"must be like 1/2, the first of two parts, found `{short(value)}`"


PartName = Annotated[str, checked_by(part_problem)]


def is_in_part(question: Question, part: str) -> bool:
    """Whether a question falls into a part.

    All questions about an entity (the first one that its image shows) fall into the same part; of those that name none,
    all about an image. A part has about its share of the entities, and of the questions if these are spread evenly.

    Args:
        question: It is divided by a hash: adding questions moves none.
        part: E.g. `1/2`, the first of two; "" is all.

    Raises:
        ValueError: `part_problem` has something against it.
    """
    if not part:
        return True
    if problem := part_problem(part):
        raise ValueError(f"a part {problem}")
    number, parts = map(int, part.split("/"))
    subject = next(iter(question.entity_ids), question.image or question.id)
    return int.from_bytes(hashlib.sha256(subject.encode()).digest()[:8]) % parts == number - 1

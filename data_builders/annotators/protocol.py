"""What an annotator is, and what it says of a passage."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from reflectune.core.types import Passage, Question

Label = Literal["relevant", "irrelevant", "unclear"]
"""`unclear`: the annotator can't say. Such a passage is neither evidence nor a negative."""

Case = tuple[Question, Passage]


@dataclass(frozen=True)
class Annotation:
    """What an annotator says of one passage.

    Attributes:
        label: Is it evidence?
        answer: The answer that it gives, "" if it is no evidence.
        note: The sentence that an LLM names as the answer's source, or why the label is `unclear`.
    """

    label: Label
    answer: str = ""
    note: str = ""

    @property
    def relevant(self) -> bool:
        """Whether the passage is evidence."""
        return self.label == "relevant"


IRRELEVANT = Annotation("irrelevant")

Annotator = Callable[[Sequence[Case]], list[Annotation]]
"""Judges cases, in their order. It gets many at a time, so that an LLM can be asked about them all at once."""

"""The interface of annotators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from reflectune.core.types import Passage, Question

Label = Literal["relevant", "irrelevant", "unclear"]
"""An `unclear` passage is neither evidence nor a negative."""

Case = tuple[Question, Passage]


@dataclass(frozen=True)
class Annotation:
    """An annotator's label of a passage.

    Attributes:
        label: `relevant` for evidence.
        answer: The answer that the passage gives, "" without evidence.
    """

    label: Label
    answer: str = ""

    @property
    def relevant(self) -> bool:
        """True if the passage is evidence."""
        return self.label == "relevant"


IRRELEVANT = Annotation("irrelevant")
UNCLEAR = Annotation("unclear")

Annotator = Callable[[Sequence[Case]], list[Annotation]]
"""A function that labels cases, in order; it receives many, so that an LLM can be asked about them concurrently."""

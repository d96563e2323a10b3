"""What becomes of a question on either side of its gates: measured by inference, learned from by training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from reflectune.core.types import Passage


@dataclass(frozen=True)
class PassageOutcome:
    """One passage that was read for a question.

    Attributes:
        passage: The passage.
        right: What the answer read from it alone is worth by the official metric, in [0, 1].
        log_odds: Of the relevance gate: the logit of its positive token less that of its negative one.
    """

    passage: Passage
    right: float
    log_odds: float


@dataclass(frozen=True)
class GateOutcome:
    """One question, answered both ways.

    Attributes:
        question_id: The question's id.
        direct: What the answer without retrieval is worth by the official metric, in [0, 1].
        retrieved: What the answer of the retrieve, filter, answer loop is worth.
        passages_read: Passages that the loop read.
        log_odds: Of the retrieval gate: the logit of its positive token less that of its negative one.
        passages: The passages, each answered from; none if the relevance gate was not asked about.
    """

    question_id: str
    direct: float
    retrieved: float
    passages_read: int
    log_odds: float
    passages: tuple[PassageOutcome, ...] = ()


class Measure(Protocol):
    """Answers the training questions both ways with the weights as they are."""

    def __call__(self, number: int, *, kept: bool = False) -> Sequence[GateOutcome]:
        """The outcomes of a round of measuring, one a question, in the order of the questions.

        Args:
            number: Of the round, from 0.
            kept: Whether an earlier run must have finished this round: the weights are later ones by now.
        """
        ...

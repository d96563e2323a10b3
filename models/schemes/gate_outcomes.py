"""Outcomes of both decisions of a question's gates: measured by inference, used by training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from reflectune.core.types import Passage


@dataclass(frozen=True)
class PassageOutcome:
    """Passage read for a question.

    Attributes:
        passage: The passage.
        right: Official score of the answer read from this passage only, in [0, 1].
        log_odds: Log-odds of the relevance gate: the logit of its positive token minus that of its negative one.
    """

    passage: Passage
    right: float
    log_odds: float


@dataclass(frozen=True)
class AnchoredPassage:
    """Judged passage with the model's output, which training preserves.

    Attributes:
        passage: The passage.
        log_odds: Log-odds of the relevance gate, see `PassageOutcome`; None if that gate is trained.
        answer: Answer from it in the same branch; "" without one.
    """

    passage: Passage
    log_odds: float | None
    answer: str = ""


@dataclass(frozen=True)
class AnchoredReply:
    """Reply in words to one of a scheme's prompts.

    Attributes:
        prompt: Name of the prompt.
        documents: Its documents.
        words: The reply.
    """

    prompt: str
    documents: tuple[Passage, ...]
    words: str


@dataclass(frozen=True)
class KLAnchor:
    """The model's outputs for both decisions of its gates, which training preserves.

    Attributes:
        passages: Some of the judged passages.
        direct: The answer without retrieval; "" if another model gives it.
        replies: Replies to prompts that ask for words about documents.
    """

    passages: tuple[AnchoredPassage, ...] = ()
    direct: str = ""
    replies: tuple[AnchoredReply, ...] = ()


NO_ANCHOR = KLAnchor()


@dataclass(frozen=True)
class GateOutcome:
    """Question answered with and without retrieval.

    Attributes:
        question_id: Id of the question.
        direct: Official score of the answer without retrieval, in [0, 1].
        retrieved: Official score of the retrieve, filter, answer loop.
        passages_read: Passages that the loop read.
        log_odds: Log-odds of the retrieval gate: the logit of its positive token minus that of its negative one.
        passages: The passages, each answered from; none if the relevance gate was not read.
        anchor: The model's other outputs.
    """

    question_id: str
    direct: float
    retrieved: float
    passages_read: int
    log_odds: float
    passages: tuple[PassageOutcome, ...] = ()
    anchor: KLAnchor = NO_ANCHOR


class Measure(Protocol):
    """Answers the training questions with and without retrieval, with the current weights."""

    def __call__(self, number: int, *, kept: bool = False) -> Sequence[GateOutcome]:
        """Return the outcome of each question in a round, in the order of the questions.

        Args:
            number: Number of the round, from 0.
            kept: True if an earlier run must have finished this round: the weights have changed since.
        """
        ...

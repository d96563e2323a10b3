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
class AnchoredPassage:
    """A passage that was judged, with what the model said of it, which training keeps as it is.

    Attributes:
        passage: The passage.
        log_odds: Of the relevance gate, as `PassageOutcome` has them; None if that gate is refined.
        answer: What was answered from it in the same branch; "" if nothing was.
    """

    passage: Passage
    log_odds: float | None
    answer: str = ""


@dataclass(frozen=True)
class AnchoredReply:
    """A reply in words to one of a scheme's prompts.

    Attributes:
        prompt: Which prompt.
        documents: What it was about.
        words: The reply.
    """

    prompt: str
    documents: tuple[Passage, ...]
    words: str


@dataclass(frozen=True)
class KLAnchor:
    """What the model itself said on either side of its gates. Training keeps it as it is.

    Attributes:
        passages: Some of the passages that were judged.
        direct: The answer without retrieval; "" if another model gives it.
        replies: The replies to prompts that ask for words about documents.
    """

    passages: tuple[AnchoredPassage, ...] = ()
    direct: str = ""
    replies: tuple[AnchoredReply, ...] = ()


NO_ANCHOR = KLAnchor()


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
        anchor: What else the model said.
    """

    question_id: str
    direct: float
    retrieved: float
    passages_read: int
    log_odds: float
    passages: tuple[PassageOutcome, ...] = ()
    anchor: KLAnchor = NO_ANCHOR


class Measure(Protocol):
    """Answers the training questions both ways with the weights as they are."""

    def __call__(self, number: int, *, kept: bool = False) -> Sequence[GateOutcome]:
        """The outcomes of a round of measuring, one a question, in the order of the questions.

        Args:
            number: Of the round, from 0.
            kept: Whether an earlier run must have finished this round: the weights are later ones by now.
        """
        ...

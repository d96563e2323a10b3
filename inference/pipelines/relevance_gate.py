"""Relevance gate of mR²AG (arXiv 2411.15041) inside iterative pipelines: which passages a record reads, when to stop.

A model that was taught by lessons has no relevance token. A second checkpoint, `model`, which was tuned to reflect turn
by turn, judges with the question's image: each passage before a record is written, and each record after it.
"""

from __future__ import annotations

from collections.abc import Sequence

from reflectune.core.config import Settings, setting
from reflectune.core.errors import UnusableInput
from reflectune.core.types import Passage, Question
from reflectune.formats.questions import check_one_image
from reflectune.inference.operators.requests import JudgeReply
from reflectune.inference.operators.vocabulary import Steps, relevance, texts_of

SUPPORTED = "record is relevant"
"""End of a trajectory whose last record the gate judges as evidence."""
Judged = dict[Passage, JudgeReply]
"""Judgements of a trajectory's passages, each passage once."""


class RelevanceGateSettings(Settings):
    """Thresholds of the relevance gate. Without one, no second checkpoint is loaded."""

    gate_filter: float = setting(
        0.0,
        "MI-RAG, PMSR: write a record from the passages whose p([Relevant]) by `model` reaches this, or else the best "
        "one; 0: from all, without judging",
        ge=0,
        le=1,
    )
    gate_stop: float = setting(
        0.0,
        "MI-RAG, PMSR: stop when a record's p([Relevant]) by `model` reaches this; 0: records aren't judged",
        ge=0,
        le=1,
    )

    @property
    def has_gate(self) -> bool:
        """True if `model` judges."""
        return self.gate_filter > 0 or self.gate_stop > 0

    def check_image(self, question: Question) -> None:
        """Check that a question has one image if it is to be judged.

        Raises:
            UnusableInput: It has no image, or several.
        """
        if self.has_gate:
            check_one_image(question, "the relevance gate (`gate_filter`, `gate_stop`)")
        if self.has_gate and not question.image:
            raise UnusableInput(
                f"question {question.id} has no image, and the relevance gate reads questions with one; leave out "
                "`gate_filter` and `gate_stop`",
                question.id,
            )


def relevant(
    iteration: int, question: Question, passages: Sequence[Passage], judged: Judged, threshold: float
) -> Steps[list[Passage]]:
    """Return the passages whose p([Relevant]) reaches `threshold`, in order; the most relevant one if none does.

    Args:
        passages: The passages found.
        judged: Earlier judgements, which are not repeated; new ones are added.
        threshold: The threshold; 0 to judge nothing and return all.
    """
    if not threshold:
        return [*passages]
    new = [passage for passage in passages if passage not in judged]
    replies = yield from relevance(iteration, question, texts_of(new))
    judged.update(zip(new, replies.each, strict=True))
    best = sorted(passages, key=lambda passage: -judged[passage].yes)[:1]
    return [passage for passage in passages if judged[passage].yes >= threshold] or best


def is_evidence(iteration: int, question: Question, record: str, threshold: float) -> Steps[bool]:
    """Return True if a record's p([Relevant]) reaches `threshold`. An empty record, or threshold 0, isn't judged."""
    if not (threshold and record.strip()):
        return False
    replies = yield from relevance(iteration, question, [record], kind="record")
    return replies.each[0].yes >= threshold

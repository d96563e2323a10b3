"""RET and SRT labels of MMKB-RAG (arXiv 2504.10074, §3.2, Algorithms 1 and 2), derived from probes.

Pure functions: what a model answered is in the probes, so that rules and thresholds change without a GPU. Where the
paper's text and algorithms contradict each other: a right answer without a document is `[NoRet]`, a wrong one `[Ret]`;
a document that changes nothing has no label and is not in the data set.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from reflectune.core.errors import UserError
from reflectune.core.types import Question
from reflectune.data_builders.annotators.string import annotate_by_string
from reflectune.data_builders.probing.records import (
    DocumentProbe,
    Probe,
    ProbedAnswer,
    drawn_rate,
    greedy_correctness,
)

RuleName = Literal["paper", "outcome", "rate", "margin"]


@dataclass(frozen=True)
class Rule:
    """When a document counts as relevant.

    Attributes:
        name: `paper`: it turns a wrong greedy answer into a right one (Algorithm 2); `rate`: it raises the rate of
            correctness over the drawn answers by at least `change`; `margin`: it raises the accepted answer's
            log-probability by at least `margin`; of these, `[NoRel]` is the same downwards. `outcome`: `[Rel]` as by
            `paper`, and `[NoRel]` for every document from which the answer is wrong, whatever it was before: so a
            question has both labels, which Algorithm 2 never gives.
        right_from: An answer worth this much, or a question answered right this often, is right; in (0, 1].
        change: For `rate`: a difference of rates, in (0, 1].
        margin: For `margin`: nats, at least 0. With 0 every document has a label whose change isn't exactly 0.
    """

    name: RuleName = "paper"
    right_from: float = 0.5
    change: float = 0.5
    margin: float = 1.0

    def __post_init__(self) -> None:
        """Refuse values that label nothing or everything; UserError."""
        for name in ("right_from", "change"):
            if not 0 < getattr(self, name) <= 1:
                raise UserError(f"`{name}` must be above 0 and at most 1, found {getattr(self, name)}")
        if not self.margin >= 0:
            raise UserError(f"`margin` must be at least 0, found {self.margin}")

    def is_wrong(self, worth: float) -> bool:
        """Whether an answer worth so much is wrong."""
        return worth < self.right_from


@dataclass(frozen=True)
class RetLabel:
    """Whether a question needs retrieval: `[Ret]` or `[NoRet]`; `correctness` without a document decided it."""

    question_id: str
    retrieve: bool
    correctness: float


@dataclass(frozen=True)
class SrtLabel:
    """Whether a document is relevant: `[Rel]` or `[NoRel]`.

    Attributes:
        question_id: The question.
        document: The document, as it was probed.
        relevant: The label.
        change: What the document changed: correctness, a difference in [-1, 1]; for the rule `margin` nats. None if an
            external labeller judged it.
    """

    question_id: str
    document: DocumentProbe
    relevant: bool
    change: float | None


def ret_label(probe: Probe, rule: Rule) -> RetLabel | None:
    """Algorithm 1: right without a document `[NoRet]`, wrong `[Ret]`; None if no answer can be judged.

    The rule `rate` judges the rate over the drawn answers, the others the greedy answer.
    """
    correctness = _correctness(probe.replies, rule)
    return None if correctness is None else RetLabel(probe.question_id, rule.is_wrong(correctness), correctness)


def srt_labels(probe: Probe, rule: Rule) -> list[SrtLabel]:
    """Algorithm 2: the documents that change the answer for better (`[Rel]`) or worse (`[NoRel]`); others by rule."""
    labels = []
    for document in probe.documents:
        change = _change(probe, document, rule)
        relevant = _relevant(change, probe, document, rule)
        if relevant is not None:
            labels.append(SrtLabel(probe.question_id, document, relevant, change))
    return labels


def external_labels(probe: Probe, question: Question) -> list[SrtLabel]:
    """What an external labeller says of the same documents, all of them: `[Rel]` if one states an accepted answer.

    The labeller is the annotator `string`; it knows nothing of the model.
    """
    return [
        SrtLabel(probe.question_id, document, annotate_by_string(question, document.passage).label == "relevant", None)
        for document in probe.documents
    ]


def is_right(replies: tuple[ProbedAnswer, ...], rule: Rule) -> bool | None:
    """Whether answers are right by a rule; None if none of those that count can be judged."""
    correctness = _correctness(replies, rule)
    return None if correctness is None else not rule.is_wrong(correctness)


def _correctness(replies: tuple[ProbedAnswer, ...], rule: Rule) -> float | None:
    return drawn_rate(replies) if rule.name == "rate" else greedy_correctness(replies)


def _change(probe: Probe, document: DocumentProbe, rule: Rule) -> float | None:
    """What a document changes, in correctness or in nats; None if one of the two numbers is missing."""
    if rule.name == "margin":
        before, after = probe.gold_log_prob, document.gold_log_prob
    else:
        before, after = _correctness(probe.replies, rule), _correctness(document.replies, rule)
    return None if before is None or after is None else after - before


def _relevant(change: float | None, probe: Probe, document: DocumentProbe, rule: Rule) -> bool | None:
    """[Rel], [NoRel], or None where the document changes nothing that counts."""
    if rule.name in ("paper", "outcome"):
        before, after = is_right(probe.replies, rule), is_right(document.replies, rule)
        if before is None or after is None:
            return None
        if rule.name == "outcome" and not after:
            return False
        return None if before == after else after
    threshold = rule.margin if rule.name == "margin" else rule.change
    if change is None or change == 0 or abs(change) < threshold:
        return None
    return change > 0

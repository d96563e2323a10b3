"""RET and SRT labels of MMKB-RAG (arXiv 2504.10074, §3.2, Algorithms 1 and 2), derived from probes.

The paper's text and algorithms contradict each other. Here, a right answer without a document is `[NoRet]`, a wrong one
`[Ret]`. A document that changes nothing has no label and is not in the data set.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from reflectune.core.config import Settings, cross_check, setting
from reflectune.core.types import Question
from reflectune.data_builders.annotators.string import annotate_by_string
from reflectune.data_builders.probing.records import DocumentProbe, Probe, ProbedAnswer, greedy_correctness
from reflectune.metrics.scoring.registry import is_wrong

RuleName = Literal["paper", "outcome", "margin"]


class Rule(Settings):
    """Rule by which a question needs retrieval and a document is relevant.

    - `paper` (Algorithm 2): a `[Rel]` document turns a wrong greedy answer into a right one, a `[NoRel]` document the
      reverse. So all labels of a question are equal.
    - `outcome`: `[Rel]` as in `paper`, `[NoRel]` for every document with a wrong answer. A question can have both.
    - `margin`: a `[Rel]` document raises the accepted answer's log-probability by at least `margin`, a `[NoRel]`
      document lowers it by as much.
    """

    rule: RuleName = setting("outcome", "rule of relevance: paper, outcome or margin")
    margin: float = setting(1.0, "`rule: margin`: minimum change of the log-probability, in nats", ge=0)
    soft: bool = setting(
        False, "`rule: margin`: train soft labels of every document, [Rel] with weight sigmoid(change / margin)"
    )
    ret_rule: Literal["known", "utility"] = setting(
        "known", "[NoRet]: questions answered right without documents; utility: also those that no document helps"
    )

    @cross_check
    def soft_problems(self) -> Iterator[str]:
        """Yield the problem of soft labels without a margin."""
        if self.soft and (self.rule != "margin" or not self.margin):
            yield f"`soft` needs `rule: margin` and a `margin` above 0; found `rule: {self.rule}`, {self.margin}"


@dataclass(frozen=True)
class RetLabel:
    """Label of a question: `[Ret]` or `[NoRet]`, by its `correctness` without a document."""

    question_id: str
    retrieve: bool
    correctness: float


@dataclass(frozen=True)
class SrtLabel:
    """Label of a document: `[Rel]` or `[NoRel]`.

    Attributes:
        question_id: The question.
        document: The probed document.
        relevant: The label.
        change: Change of the correctness by the document, in [-1, 1]; with `rule: margin`, of the log-probability, in
            nats. None for the labels of an external labeller.
    """

    question_id: str
    document: DocumentProbe
    relevant: bool
    change: float | None


def ret_label(probe: Probe, rule: Rule) -> RetLabel | None:
    """Return the label by Algorithm 1: `[NoRet]` if right without a document, else `[Ret]`; None if unknown.

    With `ret_rule: utility` it is also `[NoRet]` if no document gives a right answer.
    """
    correctness = greedy_correctness(probe.reply)
    if correctness is None:
        return None
    helps = rule.ret_rule == "known" or any(is_right(document.reply) for document in probe.documents)
    return RetLabel(probe.question_id, is_wrong(correctness) and helps, correctness)


def srt_labels(probe: Probe, rule: Rule) -> list[SrtLabel]:
    """Return the labels by Algorithm 2, for the documents that have one by the rule."""
    labels = []
    for document in probe.documents:
        change = _change(probe, document, rule)
        relevant = _relevant(change, probe, document, rule)
        if relevant is not None:
            labels.append(SrtLabel(probe.question_id, document, relevant, change))
    return labels


def external_labels(probe: Probe, question: Question) -> list[SrtLabel]:
    """Label documents by the annotator `string`: `[Rel]` if one states an accepted answer. Unclear ones are omitted."""
    judged = [(document, annotate_by_string(question, document.passage)) for document in probe.documents]
    return [SrtLabel(probe.question_id, it, note.relevant, None) for it, note in judged if note.label != "unclear"]


def is_right(reply: ProbedAnswer | None) -> bool | None:
    """Return True if the greedy answer is right; None if unknown."""
    correctness = greedy_correctness(reply)
    return None if correctness is None else not is_wrong(correctness)


def _change(probe: Probe, document: DocumentProbe, rule: Rule) -> float | None:
    """Return the change by a document, in correctness or in nats; None if a number is missing."""
    if rule.rule == "margin":
        before, after = probe.gold_log_prob, document.gold_log_prob
    else:
        before, after = greedy_correctness(probe.reply), greedy_correctness(document.reply)
    return None if before is None or after is None else after - before


def _relevant(change: float | None, probe: Probe, document: DocumentProbe, rule: Rule) -> bool | None:
    """Return True for [Rel], False for [NoRel], None for a document that changes too little."""
    if rule.rule in ("paper", "outcome"):
        before, after = is_right(probe.reply), is_right(document.reply)
        if before is None or after is None:
            return None
        if rule.rule == "outcome" and not after:
            return False
        return None if before == after else after
    if change is None or change == 0 or (abs(change) < rule.margin and not rule.soft):
        return None
    return change > 0

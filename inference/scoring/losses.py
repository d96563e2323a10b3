"""Attribute each wrong answer to the step of its pipeline that lost it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from reflectune.core.types import Evidence, Question
from reflectune.inference.scoring.scores import TraceScorer
from reflectune.inference.trace import Trace
from reflectune.inference.trace_files.columns import StoredTraces, whole_traces
from reflectune.metrics.scoring.registry import is_wrong
from reflectune.retrieval.retrievers.two_stage import ARTICLE

RIGHT: Final = "right"
OUTCOMES: Final[Mapping[str, str]] = {
    RIGHT: "right",
    "gate": "gate said no",
    "unread": "nothing retrieved",
    "not_found": "entry not found",
    "rejected": "passage rejected or not read",
    "outranked": "other passage preferred",
    "misread": "misread",
    "unknown": "right entry unknown",
    "failed": "failed",
}
"""Titles of outcomes: right, then the steps that can lose an answer, in their order of execution."""


def outcome(question: Question, trace: Trace, correctness: float) -> str:
    """Return a key of `OUTCOMES`: `right`, or the first step after which the answer could no longer be right.

    A gold passage is one of the question's evidence, or of its entry if it has no evidence. It is rejected if it was
    judged irrelevant or not read, outranked if it was judged relevant but the answer is from another passage, and
    misread if it was read. An answer with at least half of the score is right, as for MMKB-RAG's labels.
    """
    if not is_wrong(correctness):
        return RIGHT
    if trace.error:
        return "failed"
    found = {hit.entry_id for hit in trace.hits} | {read.passage.entry_id for read in trace.passages}
    found |= {hit.entry_id for step in trace.steps for hit in step.found}
    if not (trace.retrieved or found):
        return "unread" if trace.gate is None else "gate"
    entries = {*question.entity_ids, *(evidence.entry_id for evidence in question.evidence)}
    if not entries:
        return "unknown"
    if not entries & found:
        return "not_found"
    gold = {
        k
        for k, passage in enumerate(read.passage for read in trace.passages)
        if passage.entry_id in entries
        and (
            passage.section == ARTICLE  # the whole article
            or not question.evidence
            or Evidence(passage.entry_id, passage.section) in question.evidence
        )
    }
    if gold & _read(trace):
        return "misread"
    return "outranked" if any(trace.passages[k].relevant for k in gold) else "rejected"


def outcomes(questions: Sequence[Question], traces: StoredTraces, measure: TraceScorer) -> list[str | None]:
    """Return `outcome` of each question; None where the pipeline wasn't asked."""
    answered = [question for question in questions if question.id in traces]
    whole = zip(answered, whole_traces(traces, [question.id for question in answered]), strict=True)
    keys = {question.id: outcome(question, trace, measure.correctness(question, trace)) for question, trace in whole}
    return [keys.get(question.id) for question in questions]


def counted(keys: Sequence[str | None]) -> dict[str, int]:
    """Count outcomes, in the order of `OUTCOMES`, without those that didn't occur."""
    return {key: count for key in OUTCOMES if (count := keys.count(key))}


def _read(trace: Trace) -> set[int]:
    """Return the positions of the passages that the answer was generated from, directly or by their summary."""
    if trace.chosen is not None:
        return {trace.chosen}
    if trace.mct is not None and trace.mct.merged:
        return {trace.kept[number - 1] for number in trace.mct.keep}
    if trace.fallback == "abstain":
        return set()
    is_judged = bool(trace.kept) or any(read.s_rel is not None for read in trace.passages)
    return set(trace.used) if trace.used or is_judged else set(range(len(trace.passages)))

"""What pipelines cost, and what iterative ones find and know after each iteration."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

from reflectune.core.types import Question
from reflectune.inference.pipelines.iterative import is_expanded
from reflectune.inference.pipelines.pmsr_web import condensed
from reflectune.inference.scoring.scores import Traces
from reflectune.inference.trace import Step, Trace
from reflectune.metrics.judging.cover import cover_one
from reflectune.metrics.reporting.breakdown import Score, mean
from reflectune.metrics.reporting.retrieval import article_recall_at_k
from reflectune.metrics.scoring.registry import has_truth

Course = Literal["stable_correct", "correction", "conflict", "persistent_fail"]
"""PMSR's types of trajectories (table 8): right after every iteration; wrong at first and right at the end; right in
between or at first, and wrong at the end; never right."""

COSTS = ("passages", "calls", "searches", "read", "computed", "generated", "seconds")


def costs(traces: Mapping[str, Trace]) -> dict[str, float | None]:
    """What a question costs on average.

    Returns:
        `passages` that were read, `calls` of a model, `searches`, tokens that prompts had (`read`), that were read
        once where prompts begin alike (`computed`) and that were `generated`, and `seconds`; None for what isn't known:
        of traces that an earlier version wrote, or of a server.
    """
    counted = [trace for trace in traces.values() if not trace.error]
    if not counted:
        return dict.fromkeys(COSTS)
    return {
        "passages": mean_if_all([len(trace.passages) for trace in counted]),
        **{name: mean_if_all([_count(name, trace) for trace in counted]) for name in COSTS[1:-1]},
        "seconds": mean_if_all([sum(trace.seconds.values()) for trace in counted]),
    }


def _count(name: str, trace: Trace) -> float | None:
    """What a question cost; what isn't a trajectory searches at most once, and an oracle is told what it would find."""
    if name == "searches" and not trace.steps:
        return float(trace.retrieved and any(hit.query != "gold" for hit in trace.hits))
    return trace.tokens.get(name)


def trajectories(questions: Sequence[Question], traces: Traces, *, seed: int) -> dict[str, Any]:
    """Of each iterative pipeline: how far it goes, and what it has found and written after each iteration.

    Args:
        questions: Those that scores are over.
        traces: By pipeline, then by question id.
        seed: Of the intervals.

    Returns:
        By pipeline: `iterations` (mean, the first one included), `ended` (how many for each reason), `by_iteration`
        (a list: cumulative `article_recall`, over all knowledge bases and by base, and `record`: whether the record of
        that iteration, or the last one before it, states an accepted answer), `gained` (of the last iteration less the
        first, paired by question: `article_recall` and `record`; and `bases`, the last one's recall of all knowledge
        bases less the best one's alone; None where there is nothing to subtract), `asked` (of the searches that
        follow a trajectory's first, the share with a query that the model wrote, beside or in place of the question
        that its record expands; None without any) and `courses` (share of each `Course`).
    """
    return {
        name: _of_pipeline([q for q in questions if q.id in by_id and not by_id[q.id].error], by_id, seed)
        for name, by_id in traces.items()
        if any(trace.steps for trace in by_id.values())
    }


def _of_pipeline(questions: Sequence[Question], traces: Mapping[str, Trace], seed: int) -> dict[str, Any]:
    known = [question for question in questions if question.entity_ids]
    last = max((step.iteration for question in questions for step in traces[question.id].steps), default=-1)
    bases = sorted({hit.base for q in questions for step in traces[q.id].steps for hit in step.found})
    records = {question.id: records_right(question, traces[question.id], last) for question in questions}
    return {
        "iterations": mean_if_all([traces[question.id].tokens.get("iterations") for question in questions]),
        "ended": dict(Counter(traces[question.id].ended for question in questions).most_common()),
        "by_iteration": [
            {
                "article_recall": mean([found_until(q, traces[q.id], iteration) for q in known], seed),
                "by_base": {
                    base: mean([found_until(q, traces[q.id], iteration, base) for q in known], seed) for base in bases
                },
                "record": mean([records[q.id][iteration] for q in questions if records[q.id]], seed),
            }
            for iteration in range(last + 1)
        ],
        "gained": {
            "article_recall": _less(
                [found_until(q, traces[q.id], last) for q in known],
                [found_until(q, traces[q.id], 0) for q in known],
                seed,
            )
            if last > 0
            else None,
            "record": _less(
                [right[-1] for right in records.values() if right],
                [right[0] for right in records.values() if right],
                seed,
            )
            if last > 0
            else None,
            "bases": _joined(known, traces, last, bases, seed) if len(bases) > 1 else None,
        },
        "asked": mean(_asked(questions, traces), seed),
        "courses": _courses([right for right in records.values() if right]),
    }


def _less(later: Sequence[float], earlier: Sequence[float], seed: int) -> Score | None:
    return mean([one - other for one, other in zip(later, earlier, strict=True)], seed)


def _joined(
    questions: Sequence[Question], traces: Mapping[str, Trace], last: int, bases: Sequence[str], seed: int
) -> Score | None:
    """Recall of all knowledge bases less that of the one that has the highest."""
    alone = [[found_until(q, traces[q.id], last, base) for q in questions] for base in bases]
    return _less([found_until(q, traces[q.id], last) for q in questions], max(alone, key=sum), seed)


def _asked(questions: Sequence[Question], traces: Mapping[str, Trace]) -> list[float]:
    """Of each trajectory that searches again, the share of later searches with a query that the model wrote."""
    shares: list[float] = []
    for question in questions:
        steps = traces[question.id].steps
        if later := [step for step in steps if step.operator == "search"][1:]:
            shares.append(sum(_has_own_query(step, question, steps) for step in later) / len(later))
    return shares


def _has_own_query(search: Step, question: Question, steps: Sequence[Step]) -> bool:
    """Whether a search has a query that asks something: the question, expanded and condensed or not, is none.

    What was condensed is a reply of the same iteration to a prompt without documents. The first query alone may be one
    of these.
    """
    if not search.queries:
        return False
    first, *others = search.queries
    rewritten = [step for step in steps if step.operator == "rewrite" and step.iteration == search.iteration]
    of_record = {question.text, *(condensed(step.text) for step in rewritten if not step.shown)}
    return bool(others) or not (first in of_record or is_expanded(first, question.text))


def found_until(question: Question, trace: Trace, iteration: int, base: str = "") -> float:
    """Whether an entry that the question is about was found by an iteration, in all bases or in one: 0 or 1."""
    entry_ids = [
        hit.entry_id
        for step in trace.steps
        if step.iteration <= iteration
        for hit in step.found
        if base in ("", hit.base)
    ]
    return article_recall_at_k(entry_ids, question.entity_ids, max(len(entry_ids), 1))


def records_right(question: Question, trace: Trace, last: int) -> list[float]:
    """Whether the latest record states an accepted answer, by iteration from 0 to `last`.

    [] if there is no record, or no answer that can stand in one: a number without a range, a sentence.
    """
    written = {step.iteration: step.text for step in trace.steps if step.operator == "reason"}
    if 0 not in written or not has_truth(question, "cover_match"):
        return []
    right: list[float] = []
    for iteration in range(last + 1):
        right.append(cover_one(written[iteration], question) if iteration in written else right[-1])
    return right


def course(right: Sequence[float]) -> Course:
    """The type of a trajectory, by whether its records are right."""
    if all(right):
        return "stable_correct"
    if right[-1]:
        return "correction"
    return "conflict" if any(right) else "persistent_fail"


def _courses(records: Sequence[Sequence[float]]) -> dict[str, float]:
    counted = Counter(map(course, records))
    return {name: counted[name] / len(records) for name in get_args(Course)} if records else {}


def mean_if_all(values: Sequence[float | None]) -> float | None:
    """The mean, to six digits; None if one isn't known, or there is none."""
    known = [value for value in values if value is not None]
    return round(sum(known) / len(known), 6) if len(known) == len(values) and known else None

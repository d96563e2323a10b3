"""Costs of pipelines, and the findings and records of iterative ones after each iteration."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

from reflectune.core.types import Question
from reflectune.inference.operators.step_log import DOCUMENTS_LEFT_OUT, NOTED, REPLIES
from reflectune.inference.pipelines.extraction import extracted
from reflectune.inference.pipelines.iterative import is_expanded
from reflectune.inference.pipelines.pmsr_web import condensed
from reflectune.inference.scoring.mentions import mentions_by_iteration
from reflectune.inference.scoring.scores import Traces, TraceScorer
from reflectune.inference.trace import Step, TextlessTrace
from reflectune.inference.trace_files.columns import StoredTraces
from reflectune.metrics.judging.cover import cover_one
from reflectune.metrics.reporting.breakdown import Score, mean
from reflectune.metrics.reporting.retrieval import article_recall_at_k
from reflectune.metrics.scoring.registry import has_truth
from reflectune.models.remote.client import is_many
from reflectune.models.schemes.reflectiva import SCHEME as REFLECTIVA

TrajectoryType = Literal["stable_correct", "correction", "conflict", "persistent_fail"]
"""PMSR's types of trajectories (table 8): right after every iteration; wrong at some iteration but right at the end;
right at some iteration but wrong at the end; never right."""

COSTS = ("passages", "calls", "searches", "read", "computed", "generated", "seconds")


def costs(traces: Mapping[str, TextlessTrace]) -> dict[str, float | None]:
    """Return the mean costs of a question.

    Returns:
        `passages` read, `calls` of a model, `searches`, tokens of all prompts (`read`), tokens with shared prefixes
        counted once (`computed`), tokens written (`generated`), and `seconds`. None if unknown, as behind a server.
    """
    counted = [trace for trace in traces.values() if not trace.error]
    if not counted:
        return dict.fromkeys(COSTS)
    return {
        "passages": mean_if_all([len(trace.passages) for trace in counted]),
        **{name: mean_if_all([_count(name, trace) for trace in counted]) for name in COSTS[1:-1]},
        "seconds": mean_if_all([sum(trace.seconds.values()) for trace in counted]),
    }


def replies(traces: Mapping[str, TextlessTrace]) -> dict[str, int] | None:
    """Return the number of a pipeline's `calls`, and of its replies by `REPLIES` and `NOTED`; None without steps."""
    if not any(trace.steps for trace in traces.values()):
        return None
    names = ("calls", *REPLIES, *NOTED)
    return {name: sum(trace.tokens.get(name, 0) for trace in traces.values()) for name in names}


def reply_sentences(metrics: Mapping[str, Any]) -> list[str]:
    """Return a sentence for each pipeline with failed replies, which is a warning if there are many."""
    sentences = []
    for name, counts in metrics["replies"].items():
        named = [f"{counts[key]:,} {words}" for key, words in _IN_WORDS.items() if counts.get(key)]
        if named:
            warning = "warning: " if any(is_many(counts.get(key, 0), counts["calls"]) for key in REPLIES) else ""
            sentences.append(f"{warning}{name}: of {counts['calls']:,} replies {', '.join(named)}.")
        if left_out := counts.get(DOCUMENTS_LEFT_OUT):
            sentences.append(
                f"{name}: {left_out:,} documents, the last ones of each knowledge base, were left out: they didn't fit "
                "the model's context, or the server refused them."
            )
    return sentences


_IN_WORDS = {
    "replies_refused": "were refused by the server",
    "replies_cut": "were truncated at the maximum length",
    "replies_unread": "couldn't be read",
    "queries_unread": "had no query",
    "records_empty": "were empty records",
    "replies_retried": "were retried",
    "labels_written": "were read as a written Yes or No, since the server gives no log-probabilities",
}


def _count(name: str, trace: TextlessTrace) -> float | None:
    """Return a cost of a question; None if unknown. A pipeline without steps searches once, an oracle never."""
    if name == "searches" and not trace.steps:
        return float(trace.retrieved and any(hit.query != "gold" for hit in trace.hits))
    return trace.tokens.get(name)


def trajectories(
    questions: Sequence[Question],
    traces: Traces,
    *,
    seed: int,
    measure: TraceScorer,
    names: Mapping[str, Sequence[str]],
) -> dict[str, Any]:
    """Measure each iterative pipeline's trajectories: iterations, endings, and findings after each iteration.

    Args:
        questions: The scored questions.
        traces: By pipeline, then by question id.
        measure: Scorer of answers.
        names: Names of each question's entities; see `mentions_by_iteration`.

    Returns:
        By pipeline:

        - `iterations`: mean, the first one included; `ended`: count by reason;
        - `by_iteration`, a list: cumulative `article_recall`, over all knowledge bases and by base, and recall of each
          base in this iteration `alone`; `record`, the share of trajectories whose latest record states an accepted
          answer; `answer`, the score of the answer, None unless every iteration has one; and the values of
          `mentions_by_iteration`;
        - `gained`: `article_recall` and `record` of the last iteration minus those of the first, paired by question;
          and `bases`, the final recall of all knowledge bases minus that of the best one. None if undefined;
        - `asked`: share of the searches after the first with a query that the model wrote; None without such searches;
        - `courses`: share of each `TrajectoryType`;
        - `after_convergence`: iterations with a record after the one from which on all records are right, for the
          `TrajectoryType`s that end right (PMSR's Table 9).
    """
    return {
        name: _of_pipeline(
            [q for q in questions if q.id in by_id and not by_id[q.id].error], by_id, seed, measure, names
        )
        for name, by_id in traces.items()
        if any(trace.steps for trace in by_id.values())
    }


def _of_pipeline(
    questions: Sequence[Question],
    traces: StoredTraces,
    seed: int,
    measure: TraceScorer,
    names: Mapping[str, Sequence[str]],
) -> dict[str, Any]:
    known = [question for question in questions if question.entity_ids]
    last = max((step.iteration for question in questions for step in traces[question.id].steps), default=-1)
    bases = sorted({hit.base for q in questions for step in traces[q.id].steps for hit in step.found})
    records = {question.id: records_right(question, traces[question.id], last) for question in questions}
    recorded = [question for question in questions if records[question.id]]
    answers = answers_right(questions, traces, last, measure)
    mentions = mentions_by_iteration(questions, traces, names, bases=bases, last=last, seed=seed) or [{}] * (last + 1)
    newly_found = [found_until(q, traces[q.id], last) - found_until(q, traces[q.id], 0) for q in known]
    newly_right = [records[q.id][-1] - records[q.id][0] for q in recorded]

    def recall(iteration: int, base: str = "") -> Score | None:
        return mean(known, [found_until(q, traces[q.id], iteration, base) for q in known], seed)

    return {
        "iterations": mean_if_all([traces[question.id].tokens.get("iterations") for question in questions]),
        "ended": dict(Counter(traces[question.id].ended for question in questions).most_common()),
        "by_iteration": [
            {
                "article_recall": recall(iteration),
                "by_base": {base: recall(iteration, base) for base in bases},
                "alone": {
                    base: mean(known, [found_at(q, traces[q.id], iteration, base) for q in known], seed)
                    for base in bases
                },
                "record": mean(recorded, [records[q.id][iteration] for q in recorded], seed),
                "answer": mean(questions, [answers[q.id][iteration] for q in questions], seed) if answers else None,
                **mentions[iteration],
            }
            for iteration in range(last + 1)
        ],
        "gained": {
            "article_recall": mean(known, newly_found, seed) if last > 0 else None,
            "record": mean(recorded, newly_right, seed) if last > 0 else None,
            "bases": _joined(known, traces, last, bases, seed) if len(bases) > 1 else None,
        },
        "asked": _asked(questions, traces, seed),
        "courses": _courses([records[question.id] for question in recorded]),
        "after_convergence": _after_convergence(recorded, traces, records, seed),
    }


def _joined(
    questions: Sequence[Question], traces: Mapping[str, TextlessTrace], last: int, bases: Sequence[str], seed: int
) -> Score | None:
    """Return the recall of all knowledge bases minus that of the best one."""
    best = max(([found_until(q, traces[q.id], last, base) for q in questions] for base in bases), key=sum)
    gains = [found_until(q, traces[q.id], last) - alone for q, alone in zip(questions, best, strict=True)]
    return mean(questions, gains, seed)


def _asked(questions: Sequence[Question], traces: Mapping[str, TextlessTrace], seed: int) -> Score | None:
    """Return the mean share of later searches with a query that the model wrote, over trajectories that have any."""
    later = [(q, [step for step in traces[q.id].steps if step.operator == "search"][1:]) for q in questions]
    searching = [(q, searches) for q, searches in later if searches]
    shares = [
        sum(_has_own_query(search, q, traces[q.id]) for search in searches) / len(searches) for q, searches in searching
    ]
    return mean([q for q, _ in searching], shares, seed)


def _has_own_query(search: Step, question: Question, trace: TextlessTrace) -> bool:
    """Return True if the model wrote a query of a search, other than the question in its expanded or condensed form.

    `pmsr_web` condenses the question by a prompt without documents in the same iteration. Only a first query can be the
    question. A search with the image alone has no query.
    """
    if not any(search.queries):
        return False
    first, *others = search.queries
    rewritten = [step for step in trace.steps if step.operator == "rewrite" and step.iteration == search.iteration]
    condenses = trace.pipeline == "pmsr_web"
    of_record = {question.text, *(condensed(step.text) for step in rewritten if condenses and not step.shown)}
    return bool(others) or not (first in of_record or is_expanded(first, question.text))


def found_until(question: Question, trace: TextlessTrace, iteration: int, base: str = "") -> float:
    """Return 1 if an entry of the question was found up to an iteration, in one base or in any (""), else 0."""
    entry_ids = [
        hit.entry_id
        for step in trace.steps
        if step.iteration <= iteration
        for hit in step.found
        if base in ("", hit.base)
    ]
    return article_recall_at_k(entry_ids, question.entity_ids, max(len(entry_ids), 1))


def found_at(question: Question, trace: TextlessTrace, iteration: int, base: str) -> float:
    """Return 1 if an entry of the question was found in a base in an iteration, else 0."""
    steps = (step for step in trace.steps if step.iteration == iteration)
    return float(any(hit.entry_id in question.entity_ids for step in steps for hit in step.found if hit.base == base))


def answers_right(
    questions: Sequence[Question], traces: Mapping[str, TextlessTrace], last: int, measure: TraceScorer
) -> dict[str, list[float]]:
    """Return the score of the latest answer by question and iteration; {} unless every iteration has an answer."""
    right: dict[str, list[float]] = {}
    for question in questions:
        answered = [step for step in traces[question.id].steps if step.operator == "answer"]
        answers = {step.iteration: REFLECTIVA.strip(step.text) for step in answered}  # for `answer_form: reflectiva`
        shortened = {it.iteration: extracted(it.text) for it in traces[question.id].steps if it.operator == "extract"}
        answers |= {iteration: short for iteration, short in shortened.items() if short is not None}
        recorded = {step.iteration for step in traces[question.id].steps if step.operator == "reason"}
        if not answers.keys() >= {0, *recorded}:
            return {}
        latest = itertools.accumulate((i if i in answers else 0 for i in range(last + 1)), max)
        right[question.id] = [measure.worth(answers[iteration], question) for iteration in latest]
    return right


def records_right(question: Question, trace: TextlessTrace, last: int) -> list[float]:
    """Return 1 where the latest record states an accepted answer, else 0, by iteration from 0 to `last`.

    [] without a record, or if `cover_match` can't find the answer in one: a number without a range, a sentence.
    """
    written = {step.iteration: step.text for step in trace.steps if step.operator == "reason"}
    if 0 not in written or not has_truth(question, "cover_match"):
        return []
    right: list[float] = []
    for iteration in range(last + 1):
        right.append(cover_one(written[iteration], question) if iteration in written else right[-1])
    return right


def trajectory_type(right: Sequence[float]) -> TrajectoryType:
    """Return the type of a trajectory by the correctness of its records."""
    if all(right):
        return "stable_correct"
    if right[-1]:
        return "correction"
    return "conflict" if any(right) else "persistent_fail"


def _courses(records: Sequence[Sequence[float]]) -> dict[str, float]:
    counted = Counter(map(trajectory_type, records))
    return {name: counted[name] / len(records) for name in get_args(TrajectoryType)} if records else {}


def _after_convergence(
    questions: Sequence[Question],
    traces: Mapping[str, TextlessTrace],
    records: Mapping[str, Sequence[float]],
    seed: int,
) -> dict[str, Score | None]:
    """Return the mean of `iterations_after` for each type whose last record is right."""
    counted: dict[str, Score | None] = {}
    for name in ("stable_correct", "correction"):
        of_type = [question for question in questions if trajectory_type(records[question.id]) == name]
        counted[name] = mean(of_type, [iterations_after(traces[q.id], records[q.id]) for q in of_type], seed)
    return counted


def iterations_after(trace: TextlessTrace, right: Sequence[float]) -> int:
    """Return the number of records after convergence, the first record from which on all are right.

    Args:
        trace: The trajectory, whose last record is right.
        right: Its `records_right`.
    """
    written = {step.iteration for step in trace.steps if step.operator == "reason"}
    converged = next(i for i in range(len(right)) if all(right[i:]))
    return sum(iteration > converged for iteration in written)


def mean_if_all(values: Sequence[float | None]) -> float | None:
    """Return the mean, rounded to six digits; None if a value is unknown, or without values."""
    known = [value for value in values if value is not None]
    return round(sum(known) / len(known), 6) if len(known) == len(values) and known else None

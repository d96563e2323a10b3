"""Record the correctness of every question, and compute scores and leads by group of questions and over seeds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from reflectune.core.errors import UserError
from reflectune.core.types import Metric, Question
from reflectune.core.values import short
from reflectune.inference.scoring.scores import Traces, TraceScorer
from reflectune.metrics.reporting.breakdown import OVERALL, headline, kind
from reflectune.metrics.reporting.intervals import units

RECORD = "scored.json"
"""File of an evaluation that holds `record_of`."""


def labels_of(questions: Sequence[Question], group: str, metric: Metric) -> list[str]:
    """Return each question's group.

    Args:
        questions: The questions.
        group: `type`, the metric's question or answer type; a field of `meta`; or `FIELD=VALUE`, which splits the
            questions into `VALUE` and `not VALUE`.
        metric: The metric, which defines the types.

    Raises:
        UserError: No question has the field or the value.
    """
    field, _, chosen = group.partition("=")
    values = [kind(q, metric) if field == "type" else q.meta.get(field, "") for q in questions]
    if not any(values) or (chosen and chosen not in values):
        known = {*values} if any(values) else {"type"}.union(*(question.meta for question in questions))
        raise UserError(f"`groups`: no question has `{group}`; one of {short(', '.join(sorted(known)))}")
    if chosen:
        return [chosen if value == chosen else f"not {chosen}" for value in values]
    return [value or "none" for value in values]


def record_of(
    questions: Sequence[Question], pipelines: Traces, groups: Sequence[str], measure: TraceScorer
) -> dict[str, Any]:
    """Return the scored questions, and each pipeline's correctness in their order; None without a trace."""
    labels = {group: labels_of(questions, group, measure.metric) for group in groups}
    return {
        "metric": measure.metric,
        "questions": [
            {"id": q.id, "split": q.split, "entities": [*q.entity_ids], "groups": {g: labels[g][i] for g in groups}}
            for i, q in enumerate(questions)
        ],
        "correct": {
            name: [measure.correctness(q, traces[q.id]) if q.id in traces else None for q in questions]
            for name, traces in pipelines.items()
        },
    }


def joined(records: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Merge evaluations of the same questions. A pipeline that several of them ran is named with its folder.

    Args:
        records: `record_of` of each evaluation, by name. The groups of the first one are used.

    Raises:
        UserError: The evaluations have different questions or metrics.

    Example:
        >>> one = {"metric": "infoseek", "questions": [], "correct": {"closed_book": [], "mr2ag": []}}
        >>> list(joined({"runs/a": one, "runs/b": {**one, "correct": {"mr2ag": []}}})["correct"])
        ['closed_book', 'mr2ag (runs/a)', 'mr2ag (runs/b)']
    """
    (first, record), *others = records.items()
    for name, other in others:
        if other["metric"] != record["metric"] or sorted(question_keys(other)) != sorted(question_keys(record)):
            raise UserError(f"`against`: {name} and {first} have different questions or metrics; compare equal ones")
    runs = Counter(pipeline for it in records.values() for pipeline in it["correct"])
    order = {question: position for position, question in enumerate(question_keys(record))}
    correct = {}
    for folder, it in records.items():
        positions = np.argsort([order[question] for question in question_keys(it)])
        for pipeline, values in it["correct"].items():
            name = with_folder(pipeline, folder) if runs[pipeline] > 1 else pipeline
            correct[name] = [values[position] for position in positions]
    return {**record, "correct": correct}


def with_folder(pipeline: str, folder: str) -> str:
    """Return the name of a pipeline that several evaluations ran."""
    return f"{pipeline} ({folder})"


def question_keys(record: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Return a unique key of each question of a `record_of`. Ids aren't enough: two data sets may share them."""
    return [(row["id"], row["split"], *row["entities"]) for row in record["questions"]]


def parts_over_seeds(
    records: Mapping[str, Mapping[str, Any]], against: str, baselines: Collection[str] = (), seed: int = 0
) -> dict[str, Any]:
    """Return scores and leads over evaluations that differ only by the seed of training.

    Args:
        records: `record_of` of each evaluation, by name.
        against: Pipeline that the others are compared with; the baseline with the highest mean score if "".
        baselines: Names of baselines.
        seed: Seed of the intervals.

    Returns:
        `seeds` (count), `resampled`, `against`, and under `parts`, for all questions (`overall`) and each label of each
        group, the `score` and the `lead` of each pipeline: means over seeds, with intervals over seeds and entities.

    Raises:
        UserError: The evaluations have different questions, or `against` was not run in all of them.
    """
    (first, record), *others = records.items()
    for name, other in others:
        if any(other[key] != record[key] for key in ("metric", "questions")):
            raise UserError(f"`seeds`: {name} and {first} have different questions, groups or metrics")
    names = [name for name in record["correct"] if all(name in other["correct"] for _, other in others)]
    runs = {name: np.array([it["correct"][name] for it in records.values()], dtype=float) for name in names}
    rows = record["questions"]
    questions = [Question(q["id"], "", "", split=q["split"], entity_ids=tuple(q["entities"])) for q in rows]

    def estimate(members: np.ndarray, name: str, other: str = "") -> Any:
        """Return the score of a pipeline, or its lead over another, on the questions that they have answered."""
        pair = [runs[it] for it in (name, other) if it]
        asked = members & ~np.isnan(pair).any(axis=(0, 1))
        chosen = [questions[position] for position in np.flatnonzero(asked)]
        ours, theirs = pair[0][:, asked], pair[1][:, asked] if other else ()
        return headline(record["metric"], chosen).estimate(chosen, list(ours), seed, list(theirs))

    parts = {OVERALL: np.ones(len(rows), dtype=bool)}
    means = {
        name: score["value"] for name in {*names}.intersection(baselines) if (score := estimate(parts[OVERALL], name))
    }
    against = against or max(sorted(means), key=lambda name: means[name], default="")
    if against and against not in names:
        raise UserError(f"`against`: {against} is not one of the pipelines: {', '.join(names)}")
    for group in rows[0]["groups"] if rows else ():
        labels = np.array([row["groups"][group] for row in rows])
        field = group.partition("=")[0]
        parts |= {f"{field} {label}": labels == label for label in np.unique(labels)}
    return {
        "seeds": len(records),
        "resampled": units(questions),
        "against": against,
        "parts": {
            part: {
                name: {
                    "score": estimate(members, name),
                    "lead": estimate(members, name, against) if against not in ("", name) else None,
                }
                for name in names
            }
            for part, members in parts.items()
        },
    }

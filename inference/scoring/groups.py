"""Scores and leads by group of questions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from reflectune.core.errors import UserError
from reflectune.core.types import Metric, Question
from reflectune.core.values import short
from reflectune.inference.scoring.scores import Traces, TraceScorer
from reflectune.metrics.reporting.breakdown import kind

Comparisons = Callable[[Sequence[Question]], Mapping[str, Any]]
"""Leads between pipelines over some questions, by `FIRST - SECOND`."""


def labels_of(questions: Sequence[Question], group: str, metric: Metric) -> list[str]:
    """Return each question's group.

    Args:
        questions: The questions.
        group: `type`, the metric's question or answer type; a field of `meta`; or `FIELD=VALUE`, which parts the
            questions into those of this value, `VALUE`, and the others, `not VALUE`.
        metric: Decides the types.

    Raises:
        UserError: No question has the field or the value.
    """
    field, _, chosen = group.partition("=")
    values = [kind(q, metric) if field == "type" else q.meta.get(field, "") for q in questions]
    if not any(values):
        known = sorted({name for question in questions for name in question.meta})
        raise UserError(f"`groups`: no question has the field `{field}`; one of {short(', '.join(['type', *known]))}")
    if chosen and chosen not in values:
        raise UserError(
            f"`groups`: no question has {group}; `{field}` is one of {short(', '.join(sorted(set(values))))}"
        )
    return (
        [value if value == chosen else f"not {chosen}" for value in values] if chosen else [v or "none" for v in values]
    )


def check_groups(questions: Sequence[Question], groups: Sequence[str], metric: Metric) -> None:
    """Raise `UserError` if no scored question has a group's field or value."""
    scored = TraceScorer(metric).official(questions)
    for group in groups:
        labels_of(scored, group, metric)


def by_group(
    questions: Sequence[Question],
    pipelines: Traces,
    groups: Sequence[str],
    measure: TraceScorer,
    compare: Comparisons,
    seed: int,
) -> dict[str, Any]:
    """Return by group and label each pipeline's `scores`, as the headline counts them, and the `comparisons`."""
    table: dict[str, Any] = {}
    for group in groups:
        labels = labels_of(questions, group, measure.metric)
        for label in sorted(set(labels)):
            members = [q for q, own in zip(questions, labels, strict=True) if own == label]
            scores = {name: measure.score(members, traces, seed) for name, traces in pipelines.items()}
            table.setdefault(group, {})[label] = {"scores": scores, "comparisons": compare(members)}
    return table

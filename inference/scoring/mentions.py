"""Recall by iteration from the texts found, without entity ids: PMSR's entity mentions, and pseudo-relevance."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from reflectune.core.types import Passage, Question
from reflectune.formats.knowledge_base import KnowledgeBase
from reflectune.inference.trace import Trace
from reflectune.inference.trace_files.columns import StoredTraces, whole_traces
from reflectune.metrics.official.pmsr import row_mentions
from reflectune.metrics.reporting.breakdown import Score, mean
from reflectune.metrics.reporting.retrieval import prr_at_k
from reflectune.models.rendering.turns import passage_text

ALL = ""
"""Key of all knowledge bases together."""


def entity_names(questions: Sequence[Question], knowledge: KnowledgeBase) -> dict[str, list[str]]:
    """Return the names of each question's entities by its id: titles of the knowledge base, else `entity_text`."""
    names = {}
    for question in questions:
        titles = [knowledge.get(entity).title for entity in question.entity_ids if entity in knowledge]
        names[question.id] = titles or [text for text in (question.meta.get("entity_text", ""),) if text]
    return names


def mentions_by_iteration(
    questions: Sequence[Question],
    traces: StoredTraces,
    names: Mapping[str, Sequence[str]],
    *,
    bases: Sequence[str],
    last: int,
    seed: int,
) -> list[dict[str, dict[str, Any]]] | None:
    """Measure the texts found by each iteration.

    Args:
        questions: The questions, each with a trace.
        names: Names of each question's entities. If a question has none, its answers are searched, as in PMSR.
        bases: The knowledge bases.
        last: The last iteration.

    Returns:
        By iteration `entity_mention` and `prr`, each with the recall `so_far` and of the iteration `alone`, by base and
        over all (`ALL`). An iteration after a trajectory's end counts as one that found nothing. None if a trace lacks
        the text of a passage found, since its pipeline stores only the passages read.
    """
    rows: dict[tuple[int, str, str, str], list[tuple[Question, float]]] = {}
    whole = whole_traces(traces, [question.id for question in questions])
    for question, trace in zip(questions, whole, strict=True):
        if (found := _found(trace)) is None:
            return None
        for key, value in _measured(question, found, names.get(question.id, ()), [ALL, *bases], last):
            rows.setdefault(key, []).append((question, value))
    return [
        {
            name: {
                scope: {
                    key[3]: _mean(found, seed) for key, found in rows.items() if key[:3] == (iteration, name, scope)
                }
                for scope in ("so_far", "alone")
            }
            for name in ("entity_mention", "prr")
        }
        for iteration in range(last + 1)
    ]


def _found(trace: Trace) -> dict[tuple[int, str], list[Passage]] | None:
    """Return the passages found, by iteration and base, with `ALL` for all bases; None if a text is missing."""
    texts = {read.passage.id: read.passage for read in trace.passages}
    found: dict[tuple[int, str], list[Passage]] = {}
    for step in trace.steps:
        for hit in step.found:
            if hit.passage_id not in texts:
                return None
            for base in (ALL, hit.base):
                found.setdefault((step.iteration, base), []).append(texts[hit.passage_id])
    return found


def _measured(
    question: Question,
    found: Mapping[tuple[int, str], Sequence[Passage]],
    names: Sequence[str],
    bases: Sequence[str],
    last: int,
) -> Iterator[tuple[tuple[int, str, str, str], float]]:
    """Yield each measure by iteration, name, scope and base."""
    for base in bases:
        so_far = {"entity_mention": 0.0, "prr": 0.0}
        for iteration in range(last + 1):
            passages = found.get((iteration, base), ())
            values = {"entity_mention": float(_names(question, names, passages))} if names or question.answers else {}
            values |= {"prr": _states(question, passages)} if question.answers else {}
            for name, value in values.items():
                so_far[name] = max(so_far[name], value)
                yield (iteration, name, "alone", base), value
                yield (iteration, name, "so_far", base), so_far[name]


def _names(question: Question, names: Sequence[str], passages: Sequence[Passage]) -> bool:
    row = {"entity_text": [*names], "answer": [*question.answers]} if names else {"answer": [*question.answers]}
    return row_mentions({**row, "knowledge": "\n\n".join(f"{it.title}\n{it.text}" for it in passages)})


def _states(question: Question, passages: Sequence[Passage]) -> float:
    texts = [passage_text(passage) for passage in passages]
    return prr_at_k(texts, question.answers, len(texts)) if texts else 0.0


def _mean(rows: Sequence[tuple[Question, float]], seed: int) -> Score | None:
    return mean([question for question, _ in rows], [value for _, value in rows], seed)

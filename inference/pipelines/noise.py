"""Noise in trajectories: irrelevant passages of the knowledge base among the records shown to the model.

PMSR's appendix M adds distractors to the answer's context, and measures the loss. Here they are mixed into the records
of MI-RAG's and PMSR's trajectories at every step that shows all records: writing queries, and answering. Query
expansion by the last record is not affected.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Sequence
from typing import Any

from reflectune.core.config import Settings, setting
from reflectune.core.errors import UserError
from reflectune.core.types import Question
from reflectune.data_builders.annotators.string import annotate_by_string
from reflectune.formats.knowledge_base import KnowledgeBase
from reflectune.formats.passages import Lead, split_passages
from reflectune.inference.operators.requests import StepRequest, WriteRequest
from reflectune.inference.operators.trajectory import TrajectoryResult
from reflectune.inference.operators.vocabulary import Steps, relayed
from reflectune.models.rendering.turns import passage_text

NOISE = "noise"
"""Key of a trace's count of irrelevant passages."""
_TRIES = 50
"""Number of entries tried for one passage before the knowledge base is reported to have too few."""
_READ_FROM_RECORDS = ("rewrite", "answer")


class NoiseSettings(Settings):
    """Settings of noise."""

    noise: int = setting(0, "MI-RAG, PMSR: irrelevant passages among the records, drawn by the question's id", ge=0)


def with_noise(
    trajectory: Callable[[Question], Steps[TrajectoryResult]], draw: Callable[[Question], Sequence[str]]
) -> Callable[[Question], Steps[TrajectoryResult]]:
    """Mix irrelevant texts into the records that a trajectory shows the model.

    Args:
        trajectory: Trajectory whose documents of `rewrite` and `answer` are its records.
        draw: Returns a question's irrelevant texts. Their positions among the records are drawn by the question's id,
            and constant over its steps.
    """

    def steps(question: Question) -> Steps[TrajectoryResult]:
        texts = list(draw(question))
        rng = random.Random(f"places {question.id}")
        spread = [rng.random() for _ in texts]

        def add_noise(request: StepRequest | tuple[StepRequest, ...]) -> Any:
            if isinstance(request, tuple):
                return tuple(map(add_noise, request))
            if not isinstance(request, WriteRequest) or request.operator not in _READ_FROM_RECORDS:
                return request
            if "{documents}" not in request.prompt.template:  # PMSR-web condenses a question without its records
                return request
            mixed = insert_between(request.prompt.documents, texts, spread)
            return dataclasses.replace(request, prompt=dataclasses.replace(request.prompt, documents=mixed))

        def relay(request: Any) -> Steps[Any]:
            return (yield add_noise(request))

        outcome = yield from relayed(trajectory(question), relay)
        return dataclasses.replace(outcome, counts={**outcome.counts, NOISE: len(texts)})

    return steps


def insert_between(records: Sequence[str], texts: Sequence[str], positions: Sequence[float]) -> tuple[str, ...]:
    """Insert texts between records, at relative positions from 0 (before the first) to 1 (after the last).

    Example:
        >>> insert_between(["first", "second"], ["noise"], [0.5])
        ('first', 'noise', 'second')
    """
    placed = [((index + 0.5) / len(records), record) for index, record in enumerate(records)]
    placed += zip(positions, texts, strict=True)
    return tuple(text for _, text in sorted(placed, key=lambda pair: pair[0]))


def drawn_passages(knowledge: KnowledgeBase, count: int, lead: Lead) -> Callable[[Question], list[str]]:
    """Return a function that draws irrelevant passages by a question's id.

    Args:
        count: Number of passages of each question; the first ones are the same for any count.
        lead: Text before a passage.

    Returns:
        The function. It raises a UserError if the knowledge base has too few such passages.
    """

    def draw(question: Question) -> list[str]:
        texts = irrelevant_texts(knowledge, question, count, random.Random(question.id), lead)
        if len(texts) < count:
            raise UserError(
                f"`noise` is {count}, but only {len(texts)} passages irrelevant to question {question.id} were found; "
                "lower it"
            )
        return texts

    return draw


def irrelevant_texts(
    knowledge: KnowledgeBase, question: Question, count: int, rng: random.Random, lead: Lead
) -> list[str]:
    """Draw passages of entries that a question isn't about, without any of its answers.

    Returns:
        `count` texts, or fewer if the knowledge base has too few.
    """
    about = {*question.entity_ids, *(evidence.entry_id for evidence in question.evidence)}
    texts: list[str] = []
    for _ in range(_TRIES * count):
        if len(texts) == count:
            break
        entry = knowledge.get(knowledge.id_at(rng.randrange(len(knowledge))))
        passages = [] if entry.id in about else split_passages(entry, lead=lead)
        passages = [passage for passage in passages if not annotate_by_string(question, passage).relevant]
        if passages and (text := passage_text(rng.choice(passages))) not in texts:
            texts.append(text)
    return texts

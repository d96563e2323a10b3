"""Which questions are probed, in which order and in which company: a pure function of the settings."""

from __future__ import annotations

import hashlib
import heapq
from collections import Counter
from collections.abc import Sequence
from typing import TypeVar

from reflectune.core.errors import UserError
from reflectune.core.types import Question
from reflectune.data_builders.dataset import Dataset

Item = TypeVar("Item")


def select_questions(
    dataset: Dataset, split: str, *, visual: bool = True, limit: int | None = None, seed: int = 0
) -> list[Question]:
    """A split's questions in an order drawn by seed; memory holds those that are taken, and the ids of the others.

    The first questions of a long list are those of a short one, so that a higher `limit` adds to what is there.

    Args:
        dataset: Whose questions.
        split: Of which split.
        visual: Whether to take visual-dependent questions (`requires_retrieval` false) too.
        limit: Most questions; all if None.
        seed: Of the order.

    Raises:
        UserError: There is no such question, or two have the same id.
    """
    ids = [q.id for q in dataset.stream(split) if visual or q.is_knowledge_based is not False]
    if not ids:
        raise UserError(f"{dataset.root}: nothing to probe in {split}; name another `split`, or set `visual: true`")
    again = [own for own, count in Counter(ids).items() if count > 1]
    if again:
        raise UserError(f"{dataset.root}: two questions of {split} have the id {again[0]}; ids must be unique")
    order = heapq.nsmallest(limit if limit is not None else len(ids), ids, key=lambda own: _drawn(seed, own))
    places = {own: place for place, own in enumerate(order)}
    taken = [question for question in dataset.stream(split) if question.id in places]
    return sorted(taken, key=lambda question: places[question.id])


def windows(questions: Sequence[Item], size: int) -> list[Sequence[Item]]:
    """Runs of `size` questions, the last one with what is left."""
    return [questions[start : start + size] for start in range(0, len(questions), size)]


def _drawn(seed: int, question_id: str) -> tuple[str, str]:
    return hashlib.sha256(f"{seed}\0{question_id}".encode()).hexdigest(), question_id

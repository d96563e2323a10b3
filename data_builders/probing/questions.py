"""Which questions are probed, in which order and in which company: a pure function of the settings."""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Collection, Iterator, Sequence
from typing import TypeVar

from reflectune.core.errors import UserError
from reflectune.core.types import Question
from reflectune.formats.dataset import Dataset, stream_questions

Item = TypeVar("Item")


def select_questions(
    dataset: Dataset,
    split: str,
    *,
    visual: bool = True,
    limit: int | None = None,
    seed: int = 0,
    without: Collection[str] = (),
    without_facts: bool = False,
) -> list[Question]:
    """A split's questions in an order drawn by seed; memory holds those that are taken, and the ids of the others.

    Free-form questions are left out (`count_free_form`): whether an answer in sentences is right, no metric can tell.
    A higher `limit` keeps the questions of a lower one and adds more behind them.

    Args:
        dataset: The data set that has the questions.
        split: Its split.
        visual: Whether to take visual-dependent questions (`requires_retrieval` false) too.
        limit: Most questions; all if None.
        seed: Decides the order.
        without: Ids of questions that are left out.
        without_facts: Whether to leave out the questions, too, that share a fact (`facts`) with one of those, be it in
            this part of the split or in another.

    Raises:
        UserError: There is no such question, two have the same id, or none of the split has an id of `without`.
    """
    tuned = _known_facts(dataset, split, without) if without else set()
    known = tuned if without_facts else set()
    candidates, ids = 0, []
    for question in _candidates(dataset, split, visual):
        if _is_free_form(question):
            continue
        candidates += 1
        if question.id not in without and not (known and known & facts(question)):
            ids.append(question.id)
    if candidates and not ids:
        of = ", or on the facts that they ask" if known else ""
        raise UserError(
            f"{dataset.root}: the model was tuned on all {candidates:,} questions of {split} that could be asked{of}, "
            "by `trained_on`; name another `split`, or tune it on fewer"
        )
    if not ids:
        count = count_free_form(dataset, split, visual=visual)
        free = f" but {count:,} free-form questions, whose answers no metric can judge" if count else ""
        raise UserError(
            f"{dataset.root}: nothing to probe in {split}{free}; name another `split`, or set `visual: true`"
        )
    order = heapq.nsmallest(
        limit if limit is not None else len(ids), ids, key=lambda question_id: _drawn(seed, question_id)
    )
    places = {question_id: place for place, question_id in enumerate(order)}
    taken = [q for q in dataset.stream(split) if q.id in places and not _is_free_form(q)]
    return sorted(taken, key=lambda question: places[question.id])


def facts(question: Question) -> set[tuple[str, str]]:
    """What a question asks, whatever its words and picture: each entity that it names with each accepted answer.

    A range is an answer, too; letter case and spacing don't count. A question that names no entity is about its image,
    and one that looking answers asks no fact. Relations do not identify a fact: most data sets have none, and who has
    learned an answer by heart gives it when another question about the entity has the same one.
    """
    if question.is_knowledge_based is False:
        return set()
    answers = {" ".join(answer.casefold().split()) for answer in question.answers}
    if question.range is not None:
        answers.add("{} to {}".format(*question.range))
    return {(subject, answer) for subject in question.entity_ids or (question.image,) for answer in answers}


def count_free_form(dataset: Dataset, split: str, *, visual: bool = True) -> int:
    """How many free-form questions `select_questions` leaves out of a split."""
    return sum(map(_is_free_form, _candidates(dataset, split, visual)))


def windows(questions: Sequence[Item], size: int) -> list[Sequence[Item]]:
    """Runs of `size` questions, the last one with what is left."""
    return [questions[start : start + size] for start in range(0, len(questions), size)]


def _known_facts(dataset: Dataset, split: str, tuned: Collection[str]) -> set[tuple[str, str]]:
    """The facts of those of a split's questions, of all its parts, that a model was tuned on.

    Raises:
        UserError: The split has none of them.
    """
    known: set[tuple[str, str]] = set()
    count = 0
    for question in stream_questions(dataset.root, split):
        if question.id in tuned:
            count += 1
            known |= facts(question)
    if not count:
        raise UserError(
            f"`trained_on` has no question of {split} in {dataset.root}, e.g. {min(tuned)}; name data that was built "
            "from these questions with their ids, or leave it out"
        )
    return known


def _candidates(dataset: Dataset, split: str, visual: bool) -> Iterator[Question]:
    return (q for q in dataset.stream(split) if visual or q.is_knowledge_based is not False)


def _is_free_form(question: Question) -> bool:
    return question.answer_style == "free"


def _drawn(seed: int, question_id: str) -> tuple[str, str]:
    return hashlib.sha256(f"{seed}\0{question_id}".encode()).hexdigest(), question_id

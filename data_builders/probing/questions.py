"""Select the questions to probe, in an order that the settings determine."""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Collection, Iterator

from reflectune.core.errors import UserError
from reflectune.core.tokens import tokenize
from reflectune.core.types import Question
from reflectune.formats.dataset import Dataset, stream_questions


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
    """Return a split's questions in an order drawn by seed. Only the selected ones and all ids are in memory.

    Free-form questions are left out: no metric can score them. A lower `limit` selects the first ones of a higher one.

    Args:
        dataset: The data set.
        split: Its split.
        visual: Include visual-dependent questions (`requires_retrieval` false).
        limit: Maximum questions; None for all.
        seed: Seed of the order.
        without: Ids of questions to leave out.
        without_facts: Also leave out questions that share a fact (`facts`) with those of `without` in any part.

    Raises:
        UserError: No question is left, two have the same id, or the split has no id of `without`.
    """
    known = _known_facts(dataset, split, without) if without else set()
    known = known if without_facts else set()
    candidates, ids = 0, []
    for question in _candidates(dataset, split, visual):
        if not _is_free_form(question):
            candidates += 1
            if question.id not in without and not (known and known & facts(question)):
                ids.append(question.id)
    if not ids:
        raise UserError(_nothing_left(dataset, split, visual, candidates, without_facts=bool(known)))
    drawn = ((hashlib.sha256(f"{seed}\0{name}".encode()).hexdigest(), name) for name in ids)
    order = heapq.nsmallest(len(ids) if limit is None else limit, drawn)
    positions = {question_id: position for position, (_, question_id) in enumerate(order)}
    selected = [q for q in dataset.stream(split) if q.id in positions and not _is_free_form(q)]
    return sorted(selected, key=lambda question: positions[question.id])


def facts(question: Question) -> set[tuple[str, str]]:
    """Return the facts that a question asks for, regardless of words and image: pairs of entity and accepted answer.

    A range is an answer too. Answers are compared by their tokens (`tokenize`). For a question without entities its
    image stands for the entity. A visual-dependent question has no facts. Relations are ignored: most data sets have
    none, and a model that has memorised an answer gives it to any question about the entity.
    """
    if question.is_knowledge_based is False:
        return set()
    answers = {" ".join(tokenize(answer)) or answer for answer in question.answers}
    if question.range is not None:
        answers.add("{} to {}".format(*question.range))
    return {(subject, answer) for subject in question.entity_ids or (question.image,) for answer in answers}


def count_free_form(dataset: Dataset, split: str, *, visual: bool = True) -> int:
    """Return the number of free-form questions that `select_questions` leaves out."""
    return sum(map(_is_free_form, _candidates(dataset, split, visual)))


def _nothing_left(dataset: Dataset, split: str, visual: bool, candidates: int, *, without_facts: bool) -> str:
    if candidates:
        or_facts = ", or on the facts that they ask" if without_facts else ""
        return (
            f"{dataset.root}: the model was tuned on all {candidates:,} questions of {split} that could be asked"
            f"{or_facts}, by `trained_on`; name a different `split`, or tune it on fewer"
        )
    count = count_free_form(dataset, split, visual=visual)
    free_form = f" but {count:,} free-form questions, whose answers no metric can judge" if count else ""
    return f"{dataset.root}: nothing to probe in {split}{free_form}; name a different `split`, or set `visual: true`"


def _known_facts(dataset: Dataset, split: str, tuned: Collection[str]) -> set[tuple[str, str]]:
    """Return the facts of the questions that a model was tuned on, over all parts of the split."""
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

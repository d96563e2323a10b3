"""Which questions a split of reflection data is built from; memory holds those that are drawn, not the data set."""

from __future__ import annotations

import dataclasses
import os
import random
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from reflectune.core.errors import UserError
from reflectune.core.types import Question
from reflectune.data_builders.mr2ag.config import BuildConfig
from reflectune.formats.dataset import Dataset

SPARE = 1000
"""Visual-dependent questions beyond those that the ratio can ask for: some of them may be bad rows."""


def select_questions(dataset: Dataset, config: BuildConfig) -> tuple[list[Question], list[Question]]:
    """Knowledge-based questions, and visual-dependent ones in a drawn order; `limit` draws from the former.

    With `visual_ratio: 1` there are none of the former, and `limit` draws from the latter.

    Those of which it is unknown (`Question.is_knowledge_based`) come with the former, so that they are named as bad
    rows. No more visual-dependent questions come back than the ratio can ask for, and some to spare.

    Ids are unique within one data set only: where a visual-dependent question of another one has the id of a
    knowledge-based one, its data set's name is put before it, as in `llava: q1`.

    Raises:
        UserError: `visual_dataset` or `visual_split` names questions of which none is visual-dependent.
    """
    rng = random.Random(f"{config.seed}:{config.split}")
    if config.visual_ratio == 1:
        return [], _visual(dataset, config, None, rng)
    total = _count(dataset, config.split, _is_knowledge)
    kept: Collection[int] = range(total)
    if config.limit is not None and config.limit < total:
        kept = set(rng.sample(range(total), config.limit))
    knowledge = list(_take(dataset, config.split, _is_knowledge, kept).values())
    return knowledge, _renamed(_visual(dataset, config, len(knowledge), rng), knowledge, config)


def image_roots(dataset: Dataset, config: BuildConfig) -> tuple[Path, ...]:
    """The folders that the image paths of a build may lead into; relative ones start at the first.

    They are those of both data sets, and the output, where the black image is.
    """
    other = Dataset(Path(config.visual_dataset)).image_roots if config.visual_dataset else ()
    return (*dataset.image_roots, *other, Path(config.output))


def _visual(dataset: Dataset, config: BuildConfig, beside: int | None, rng: random.Random) -> list[Question]:
    """Visual-dependent questions in a drawn order, as many as may stand beside so many knowledge-based ones.

    Without any beside them (None) all of them, or `limit`.
    """
    other = Dataset(Path(config.visual_dataset), config.part) if config.visual_dataset else dataset
    split = config.visual_split or config.split
    total = _count(other, split, _is_visual)
    if not total and config.visual_ratio and (config.visual_dataset or config.visual_split):
        raise UserError(
            f"no question of split {split} of {other.root} is visual-dependent (`requires_retrieval` false); "
            "name another `visual_dataset` or `visual_split`, or set `visual_ratio: 0`"
        )
    order = list(range(total))
    rng.shuffle(order)
    order = order[: config.limit if beside is None else visual_beside(beside, config) + SPARE]
    taken = _take(other, split, _is_visual, set(order))
    return [_seen_from(dataset, other, taken[position]) for position in order]


def _renamed(visual: Sequence[Question], knowledge: Sequence[Question], config: BuildConfig) -> list[Question]:
    """The visual-dependent questions; those of another data set under ids that no knowledge-based one has."""
    if not config.visual_dataset:
        return list(visual)
    other = Dataset(Path(config.visual_dataset))
    name = other.manifest.get("name") or other.root.resolve().name
    knowledge_ids = {question.id for question in knowledge}
    taken = knowledge_ids | {question.id for question in visual}
    renamed = []
    for question in visual:
        new_id = question.id
        while new_id in (knowledge_ids if new_id == question.id else taken):
            new_id = f"{name}: {new_id}"
        taken.add(new_id)
        renamed.append(dataclasses.replace(question, id=new_id))
    return renamed


def visual_beside(knowledge: int, config: BuildConfig) -> int:
    """How many visual-dependent questions stand beside so many knowledge-based ones, for a ratio below 1."""
    return round(knowledge * config.visual_ratio / (1 - config.visual_ratio))


def _is_knowledge(question: Question) -> bool:
    return question.is_knowledge_based is not False


def _is_visual(question: Question) -> bool:
    return question.is_knowledge_based is False


def _count(dataset: Dataset, split: str, wanted: Callable[[Question], bool]) -> int:
    return sum(wanted(question) for question in dataset.stream(split))


def _take(
    dataset: Dataset, split: str, wanted: Callable[[Question], bool], positions: Collection[int]
) -> dict[int, Question]:
    """The wanted questions at these positions, counted among the wanted ones in the order of the file."""
    questions = (question for question in dataset.stream(split) if wanted(question))
    return {position: question for position, question in enumerate(questions) if position in positions}


def _seen_from(dataset: Dataset, other: Dataset, question: Question) -> Question:
    """A question of another data set, its image's path made relative to this one."""
    if other is dataset or not question.image:
        return question
    way = Path(os.path.relpath(other.root.resolve(), dataset.root.resolve()))
    return dataclasses.replace(question, image=(way / question.image).as_posix())

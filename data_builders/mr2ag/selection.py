"""Select the questions of a split of reflection data. Memory holds the drawn questions, not the data set."""

from __future__ import annotations

import dataclasses
import os
import random
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path

from reflectune.core.config import cross_check, setting
from reflectune.core.errors import UserError
from reflectune.core.types import Question
from reflectune.core.values import SplitName
from reflectune.formats.dataset import MANIFEST, Dataset, SplitKey, split_issues
from reflectune.formats.parts import PartName

SPARE = 1000
"""Visual-dependent questions drawn beyond the number that the ratio needs: some may be bad rows."""


class QuestionSettings(SplitKey):
    """Settings that select the questions."""

    part: PartName = setting("", "only a part of the questions, e.g. 1/2, divided by entity; default: all")
    limit: int | None = setting(
        None, "maximum knowledge-based questions (visual_ratio 1: visual ones), drawn by seed", ge=1
    )
    two_hop: bool = setting(True, "take two-hop questions too: their evidence is of an entity outside the image")
    visual_ratio: float = setting(0.2, "share of visual-dependent questions in the data; 1: only these", ge=0, le=1)
    visual_dataset: str = setting(
        "",
        "data set folder of the visual-dependent questions, e.g. LLaVA-Instruct; default: the same",
        hashed=False,  # its content is
    )
    visual_split: SplitName = setting("", "split of the visual-dependent questions; default: the same split")

    @cross_check
    def question_problems(self) -> Iterator[str]:
        """Yield the problems of data sets and splits."""
        if self.visual_dataset and not Path(self.visual_dataset, MANIFEST).is_file():
            yield f"`visual_dataset`: {self.visual_dataset} has no {MANIFEST}; give a folder that convert wrote"
        visual = self.visual_split or (self.split if self.visual_dataset else "")
        yield from split_issues("visual_split", self.visual_dataset or self.dataset, [visual])
        if self.visual_ratio == 1 and self.visual_dataset:
            yield "`visual_ratio: 1` takes the visual-dependent questions of `dataset`; leave out `visual_dataset`"

    def open_visual(self) -> Dataset | None:
        """Open `visual_dataset`, if it is set."""
        return Dataset(Path(self.visual_dataset), self.part) if self.visual_dataset else None

    def visual_count(self, knowledge: int) -> int:
        """Return the number of visual-dependent questions for a number of knowledge-based ones, for a ratio below 1."""
        return round(knowledge * self.visual_ratio / (1 - self.visual_ratio))


def select_questions(dataset: Dataset, settings: QuestionSettings, seed: int) -> tuple[list[Question], list[Question]]:
    """Return knowledge-based questions, drawn by `limit`, and visual-dependent ones in random order.

    With `visual_ratio: 1` there are only visual-dependent ones, drawn by `limit`. Otherwise there are as many of them
    as the ratio needs, plus `SPARE`. Questions of unknown kind (`Question.is_knowledge_based`) count as
    knowledge-based, so that they are reported as bad rows.

    If a visual-dependent question of a different data set has the id of a knowledge-based one, the name of its data set
    is prepended, as in `llava: q1`.

    Args:
        dataset: The data set.
        settings: Kinds and number of questions.
        seed: Seed of the draws.

    Raises:
        UserError: `visual_dataset` or `visual_split` has no visual-dependent question.
    """
    rng = random.Random(f"{seed}:{settings.split}")
    if settings.visual_ratio == 1:
        return [], _visual(dataset, dataset, settings, settings.limit, rng)
    taken = _is_knowledge if settings.two_hop else _is_single_hop
    total = _count(dataset, settings.split, taken)
    positions: Collection[int] = range(total)
    if settings.limit is not None and settings.limit < total:
        positions = set(rng.sample(range(total), settings.limit))
    knowledge = list(_take(dataset, settings.split, taken, positions).values())
    other = settings.open_visual() or dataset
    visual = _visual(dataset, other, settings, settings.visual_count(len(knowledge)) + SPARE, rng)
    return knowledge, visual if other is dataset else _renamed(visual, knowledge, other)


def image_roots(dataset: Dataset, settings: QuestionSettings, output: Path) -> tuple[Path, ...]:
    """Return the folders that the image paths of a build may lead into; relative paths start at the first.

    They are the folders of both data sets, and the output, which contains the black image.
    """
    other = settings.open_visual()
    return (*dataset.image_roots, *(other.image_roots if other else ()), output)


def _visual(
    dataset: Dataset, other: Dataset, settings: QuestionSettings, count: int | None, rng: random.Random
) -> list[Question]:
    """Return at most `count` visual-dependent questions in random order, with image paths relative to `dataset`."""
    split = settings.visual_split or settings.split
    total = _count(other, split, _is_visual)
    if not total and settings.visual_ratio and (settings.visual_dataset or settings.visual_split):
        raise UserError(
            f"no question of split {split} of {other.root} is visual-dependent (`requires_retrieval` false); "
            "name a different `visual_dataset` or `visual_split`, or set `visual_ratio: 0`"
        )
    order = list(range(total))
    rng.shuffle(order)
    order = order[:count]
    questions = _take(other, split, _is_visual, set(order))
    return [_relative_to(dataset, other, questions[position]) for position in order]


def _renamed(visual: Sequence[Question], knowledge: Sequence[Question], other: Dataset) -> list[Question]:
    """Return the visual-dependent questions under ids that no knowledge-based question has."""
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


def _is_knowledge(question: Question) -> bool:
    return question.is_knowledge_based is not False


def _is_single_hop(question: Question) -> bool:
    return _is_knowledge(question) and question.meta.get("two_hop") != "yes"


def _is_visual(question: Question) -> bool:
    return question.is_knowledge_based is False


def _count(dataset: Dataset, split: str, is_included: Callable[[Question], bool]) -> int:
    return sum(is_included(question) for question in dataset.stream(split))


def _take(
    dataset: Dataset, split: str, is_included: Callable[[Question], bool], positions: Collection[int]
) -> dict[int, Question]:
    """Return the included questions at these positions, counted among the included ones in file order."""
    questions = (question for question in dataset.stream(split) if is_included(question))
    return {position: question for position, question in enumerate(questions) if position in positions}


def _relative_to(dataset: Dataset, other: Dataset, question: Question) -> Question:
    """Return a question of a different data set with its image's path relative to this one."""
    if other is dataset or not question.image:
        return question
    way = Path(os.path.relpath(other.root.resolve(), dataset.root.resolve()))
    return dataclasses.replace(question, image=(way / question.image).as_posix())

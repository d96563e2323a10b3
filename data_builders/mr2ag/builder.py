"""Turns questions into reflection examples: images, articles, retrieval, annotation and random draws in one place."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import os
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from PIL import Image

from reflectune.core.errors import UserError
from reflectune.core.images import load_image
from reflectune.core.rows import from_row
from reflectune.core.types import Passage, Question
from reflectune.data_builders.annotators.protocol import Annotator
from reflectune.data_builders.mr2ag.config import BuildConfig
from reflectune.data_builders.mr2ag.examples import (
    Outcome,
    candidates,
    knowledge_example,
    question_problem,
    visual_example,
)
from reflectune.data_builders.mr2ag.selection import image_roots
from reflectune.formats.dataset import Dataset
from reflectune.formats.passages import split_passages
from reflectune.models.schemes.examples import ReflectionExample
from reflectune.retrieval.retrievers.entry_retriever import Retriever

Made = TypeVar("Made")

BLANK_SIDE = 224
"""Pixels of the black image of a question that has none."""


@dataclass(frozen=True)
class Rejected:
    """A question that gave no example, and why. `bad` marks a bad row; the others are the strict filter's."""

    id: str
    reason: str
    bad: bool


@dataclass
class Batch:
    """What some questions became.

    Attributes:
        examples: Training examples.
        rejected: Questions that gave none.
        answer_elsewhere: Passages that the string filter kept from being negatives.
        without_answer: Passages that it kept from being evidence.
        unclear: Passages of which the annotator couldn't say what they are.
    """

    examples: list[ReflectionExample] = field(default_factory=list)
    rejected: list[Rejected] = field(default_factory=list)
    answer_elsewhere: int = 0
    without_answer: int = 0
    unclear: int = 0

    def note(self, question: Question, outcome: Outcome) -> None:
        """Add what became of one question."""
        self.answer_elsewhere += outcome.answer_elsewhere
        self.without_answer += outcome.without_answer
        self.unclear += outcome.unclear
        if outcome.example is None:
            self.rejected.append(Rejected(question.id, outcome.reason, bad=False))
        else:
            self.examples.append(outcome.example)

    def add(self, row: dict[str, Any]) -> None:
        """Add a batch that was written down with `dataclasses.asdict`."""
        self.examples += [from_row(ReflectionExample, example) for example in row["examples"]]
        self.rejected += [Rejected(**rejected) for rejected in row["rejected"]]
        self.answer_elsewhere += row["answer_elsewhere"]
        self.without_answer += row["without_answer"]
        self.unclear += row["unclear"]


class ExampleBuilder:
    """Makes the examples of one build.

    Args:
        dataset: Questions, images and knowledge base.
        retriever: For hard negatives, or None.
        annotate: Tells evidence.
        config: What to build.
    """

    def __init__(self, dataset: Dataset, retriever: Retriever | None, annotate: Annotator, config: BuildConfig) -> None:
        self._dataset, self._retriever, self._annotate, self._config = dataset, retriever, annotate, config
        self._recipe = config.recipe()
        self._roots = image_roots(dataset, config)
        self._ranked: dict[str, Sequence[str]] = {}
        self._passages = functools.lru_cache(maxsize=8192)(self._split)

    def pictured(self, questions: Sequence[Question]) -> list[Question]:
        """The first sound question about each picture that is searched for; for the black one there is nothing to find.

        None without a retriever.
        """
        if self._retriever is None:
            return []
        first: dict[str, Question] = {}
        for question in map(self._with_image, questions):
            if not self._is_blank(question.image) and not question_problem(question):
                first.setdefault(question.image, question)
        return list(first.values())

    def search(self, questions: Sequence[Question]) -> dict[str, list[str]]:
        """The best entries of each question's picture, by its path; a bad picture is an error, or has none.

        They are as many as remain deep enough when the question's own are taken out.
        """
        images = {q.image: image for q in questions if (image := self._try(q, self._open, Batch())) is not None}
        if self._retriever is None or not images:
            return {}
        hits_by_image = self._retriever.search(list(images.values()), top_n=self._config.retrieval_depth + 2)
        return {path: [hit.entry_id for hit in hits] for path, hits in zip(images, hits_by_image, strict=True)}

    def expect(self, ranked: Mapping[str, Sequence[str]]) -> None:
        """Take what was found for pictures; `knowledge` draws its hard negatives from it."""
        self._ranked.update(ranked)

    def knowledge(self, questions: Sequence[Question]) -> Batch:
        """Examples of knowledge-based questions; the annotator is asked once about them all."""
        batch = Batch()
        questions = [self._with_image(question) for question in questions]
        answerable = [question for question in questions if self._try(question, self._open, batch) is not None]
        articles = [(q, article) for q in answerable if (article := self._try(q, self._article, batch)) is not None]
        cases_by_question = [
            [(question, p) for p in candidates(question, article, self._recipe)] for question, article in articles
        ]
        judgements = iter(self._annotate(list(itertools.chain.from_iterable(cases_by_question))))
        for (question, article), cases in zip(articles, cases_by_question, strict=True):
            judged = [(passage, next(judgements)) for _, passage in cases]
            ranked = self._others(question)
            batch.note(question, knowledge_example(question, article, judged, ranked, self._draw_article, self._recipe))
        return batch

    def visual(self, questions: Sequence[Question], wanted: int) -> Batch:
        """Examples of the first `wanted` fit visual-dependent questions."""
        batch = Batch()
        for question in map(self._with_image, questions):
            if len(batch.examples) == wanted:
                break
            if self._try(question, self._open, batch) is not None:
                batch.examples.append(visual_example(question))
        return batch

    def candidates(self, question: Question) -> list[Passage]:
        """The passages that the annotator would judge, for an estimate of what that costs."""
        return candidates(question, self._article(question), self._recipe)

    def _try(self, question: Question, make: Callable[[Question], Made], batch: Batch) -> Made | None:
        """What `make` makes of a question; a bad row is an error, or is listed, as the config says."""
        try:
            if problem := question_problem(question):
                raise UserError(problem)
            return make(question)
        except UserError as error:
            if self._config.on_error == "stop":
                advice = "mend the row, or leave such rows out with `on_error: skip`"
                raise UserError(f"question {question.id} of {self._dataset.root}: {error}; {advice}") from error
            batch.rejected.append(Rejected(question.id, str(error), bad=True))
            return None

    def _with_image(self, question: Question) -> Question:
        """The question; with the black image if it has none and the config says so."""
        if question.image.strip() or self._config.without_image == "refuse":
            return question
        return dataclasses.replace(question, image=blank_image(self._dataset, Path(self._config.output)))

    def _open(self, question: Question) -> Image.Image:
        if self._is_blank(question.image):
            return Image.new("RGB", (BLANK_SIDE, BLANK_SIDE))
        return load_image(question.image, root=self._roots)

    def _is_blank(self, path: str) -> bool:
        return self._config.without_image == "blank" and path == blank_image(self._dataset, Path(self._config.output))

    def _article(self, question: Question) -> list[Passage]:
        return [passage for entry_id in question.entity_ids for passage in self._passages(entry_id)]

    def _others(self, question: Question) -> list[list[Passage]]:
        """The passages of the entries that rank high without being the question's own."""
        others = [entry for entry in self._ranked.get(question.image, []) if entry not in question.entity_ids]
        return [self._passages(entry) for entry in others[: self._config.retrieval_depth]]

    def _draw_article(self, rng: random.Random) -> list[Passage]:
        return self._passages(rng.choice(self._entry_ids))

    @functools.cached_property
    def _entry_ids(self) -> list[str]:
        return list(self._dataset.knowledge.ids)  # a data set of visual-dependent questions has no knowledge base

    def _split(self, entry_id: str) -> list[Passage]:
        return split_passages(self._dataset.knowledge.get(entry_id), lead=self._config.lead)


def blank_image(dataset: Dataset, output: Path) -> str:
    """Path of the black image that text-only questions get, as ReflectiVA gives them one; relative to the data set."""
    return Path(os.path.relpath((output / "blank.png").resolve(), dataset.root.resolve())).as_posix()

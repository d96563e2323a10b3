"""Convert questions to reflection examples: open images, split articles, retrieve, annotate and sample."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeVar

from PIL import Image

from reflectune.core.config import setting
from reflectune.core.errors import UnusableInput, UserError
from reflectune.core.images import load_image
from reflectune.core.images_ahead import ImagesAhead, Prepare
from reflectune.core.paths import Roots
from reflectune.core.types import Passage, Question
from reflectune.data_builders.annotators.protocol import Annotator
from reflectune.data_builders.mr2ag.examples import (
    ExampleResult,
    PassageSettings,
    candidates,
    knowledge_example,
    question_problem,
    visual_example,
)
from reflectune.formats.dataset import Dataset
from reflectune.formats.passages import split_passages
from reflectune.models.schemes.examples import ReflectionExample
from reflectune.retrieval.retrievers.queries import Query

if TYPE_CHECKING:
    from reflectune.retrieval.retrievers.entry_retriever import Retriever  # slow to import

Made = TypeVar("Made")

BLANK_SIDE = 224
"""Side of the black image of a question without an image, in pixels."""


class ExampleSettings(PassageSettings):
    """Settings that determine the examples, given the questions."""

    retrieval_depth: int = setting(10, "best entries to draw hard negatives from", ge=1)
    lead: Literal["none", "first_sentence"] = setting(
        "first_sentence", "text before each passage: nothing, or a sentence on its entry"
    )
    without_image: Literal["refuse", "blank"] = setting(
        "refuse", "a question without an image (Natural Questions): a bad row, or give it a black image"
    )
    on_error: Literal["stop", "skip"] = setting(
        "stop", "a bad row: stop, or list it in statistics.json and go on", hashed=False
    )


@dataclass(frozen=True)
class RejectedQuestion:
    """A question without an example, and the reason. `bad` is True for bad rows, False if the filter rejected it."""

    id: str
    reason: str
    bad: bool


@dataclass
class BuiltExamples:
    """The examples of some questions.

    Attributes:
        examples: The training examples.
        rejected: Questions without one.
        answer_elsewhere: Number of passages that the string filter rejected as negatives.
        without_answer: Number of passages that the string filter rejected as evidence.
        unclear: Number of passages that the annotator could not judge.
    """

    examples: list[ReflectionExample] = field(default_factory=list)
    rejected: list[RejectedQuestion] = field(default_factory=list)
    answer_elsewhere: int = 0
    without_answer: int = 0
    unclear: int = 0

    def add(self, question: Question, result: ExampleResult) -> None:
        """Add the result of one question."""
        self.answer_elsewhere += result.answer_elsewhere
        self.without_answer += result.without_answer
        self.unclear += result.unclear
        if result.example is None:
            self.rejected.append(RejectedQuestion(question.id, result.reason, bad=False))
        else:
            self.examples.append(result.example)

    def extend(self, other: BuiltExamples) -> None:
        """Add the examples of other questions."""
        self.examples += other.examples
        self.rejected += other.rejected
        self.answer_elsewhere += other.answer_elsewhere
        self.without_answer += other.without_answer
        self.unclear += other.unclear


class ExampleBuilder:
    """Makes the examples of one build.

    Args:
        dataset: Questions, images and knowledge base.
        retriever: Retriever for hard negatives, or None.
        annotate: Annotator of evidence.
        settings: Settings of the examples.
        image_roots: The folders that image paths may lead into; relative ones start at the first.
        blank: Path of the black image, for `without_image: blank`.

    Attributes:
        images: Opens the images of the next search.
    """

    def __init__(
        self,
        dataset: Dataset,
        retriever: Retriever | None,
        annotate: Annotator,
        settings: ExampleSettings,
        image_roots: Roots,
        blank: str,
    ) -> None:
        self._dataset, self._retriever, self._annotate, self._settings = dataset, retriever, annotate, settings
        self._roots, self._blank = image_roots, blank
        self._ranked: dict[str, Sequence[str]] = {}
        self.images = ImagesAhead(self._open, functools.partial(_preparers, retriever))
        self._passages = functools.lru_cache(maxsize=8192)(
            lambda entry_id: split_passages(dataset.knowledge.get(entry_id), lead=settings.lead)
        )

    def images_to_search(self, questions: Sequence[Question]) -> list[Question]:
        """Return the first valid question about each image, except the black one; none without a retriever."""
        if self._retriever is None:
            return []
        first: dict[str, Question] = {}
        for question in map(self._with_image, questions):
            if not self._is_blank(question.image) and not question_problem(question):
                first.setdefault(question.image, question)
        return list(first.values())

    def search(self, questions: Sequence[Question]) -> dict[str, list[str]]:
        """Return the ids of the best entries for each question's image, by the image's path.

        There are enough that `retrieval_depth` remain after the question's own entries are removed.

        Raises:
            UserError: An image is bad, and `on_error` is `stop`; else the image is left out.
        """
        rejected = BuiltExamples()
        images = {q.image: image for q in questions if (image := self._try(q, self.images.take, rejected)) is not None}
        try:
            return self._search(images)
        except UnusableInput:  # raised by the encoder: search image by image
            searched = [
                self._try(q, lambda q: self._search({q.image: images[q.image]}), rejected)
                for q in questions
                if q.image in images
            ]
        return {path: ids for by_path in filter(None, searched) for path, ids in by_path.items()}

    def _search(self, images: Mapping[str, Image.Image]) -> dict[str, list[str]]:
        if self._retriever is None or not images:
            return {}
        queries = [Query(image) for image in images.values()]
        hits_by_image = self._retriever.search(queries, self._settings.retrieval_depth + 2)
        return {path: [hit.entry_id for hit in hits] for path, hits in zip(images, hits_by_image, strict=True)}

    def add_ranking(self, ranked: Mapping[str, Sequence[str]]) -> None:
        """Add results of `search`, from which `build_knowledge` draws hard negatives."""
        self._ranked.update(ranked)

    def build_knowledge(self, questions: Sequence[Question]) -> BuiltExamples:
        """Build the examples of knowledge-based questions, with one call of the annotator."""
        built = BuiltExamples()
        answerable = list(self._readable(questions, built))
        articles = [(q, article) for q in answerable if (article := self._known_article(q, built)) is not None]
        cases_by_question = [[(question, p) for p in candidates(question, article)] for question, article in articles]
        judgements = iter(self._annotate(list(itertools.chain.from_iterable(cases_by_question))))
        for (question, article), cases in zip(articles, cases_by_question, strict=True):
            judged = [(passage, next(judgements)) for _, passage in cases]
            ranked = self._others(question)
            built.add(
                question, knowledge_example(question, article, judged, ranked, self._draw_article, self._settings)
            )
        return built

    def build_visual(self, questions: Sequence[Question], count: int | None = None) -> BuiltExamples:
        """Build the examples of visual-dependent questions: of the first `count` valid ones, or of all."""
        built = BuiltExamples()
        for question in itertools.islice(self._readable(questions, built), count):
            built.examples.append(visual_example(question))
        return built

    def candidates(self, question: Question) -> list[Passage]:
        """Return the passages that the annotator would judge."""
        return candidates(question, self._article(question))

    def _try(self, question: Question, make: Callable[[Question], Made], built: BuiltExamples) -> Made | None:
        """Call `make`. A bad row is an error, or is added to the rejected questions."""
        try:
            if problem := question_problem(question):
                raise UserError(problem)
            return make(question)
        except UserError as error:
            if self._settings.on_error == "stop":
                advice = "fix the row, or leave such rows out with `on_error: skip`"
                raise UserError(f"question {question.id} of {self._dataset.root}: {error}; {advice}") from error
            built.rejected.append(RejectedQuestion(question.id, str(error), bad=True))
            return None

    def _readable(self, questions: Sequence[Question], built: BuiltExamples) -> Iterator[Question]:
        """Yield the valid questions with a readable image, and reject the others. Searched images were read before."""
        questions = [self._with_image(question) for question in questions]
        with ImagesAhead(self._open) as images:
            images.begin([q for q in questions if q.image not in self._ranked and not question_problem(q)])
            for question in questions:
                if self._try(question, lambda q: q.image in self._ranked or images.take(q), built):
                    yield question

    def _with_image(self, question: Question) -> Question:
        if question.image.strip() or self._settings.without_image == "refuse":
            return question
        return dataclasses.replace(question, image=self._blank)

    def _open(self, question: Question) -> Image.Image:
        if self._is_blank(question.image):
            return Image.new("RGB", (BLANK_SIDE, BLANK_SIDE))
        return load_image(question.image, root=self._roots)

    def _is_blank(self, path: str) -> bool:
        return self._settings.without_image == "blank" and path == self._blank

    def _known_article(self, question: Question, built: BuiltExamples) -> list[Passage] | None:
        """Return the article of a question, or None if its entry is missing: a bad row. A damaged file is an error."""
        if all(entry_id in self._dataset.knowledge for entry_id in question.entity_ids):
            return self._article(question)
        return self._try(question, self._article, built)

    def _article(self, question: Question) -> list[Passage]:
        return [passage for entry_id in dict.fromkeys(question.entity_ids) for passage in self._passages(entry_id)]

    def _others(self, question: Question) -> list[list[Passage]]:
        """Return the passages of the best entries other than the question's own."""
        others = [entry for entry in self._ranked.get(question.image, []) if entry not in question.entity_ids]
        return [self._passages(entry) for entry in others[: self._settings.retrieval_depth]]

    def _draw_article(self, rng: random.Random) -> list[Passage]:
        knowledge = self._dataset.knowledge
        return self._passages(knowledge.id_at(rng.randrange(len(knowledge))))


def _preparers(retriever: Retriever | None) -> list[Prepare]:
    from reflectune.retrieval.retrievers.entry_retriever import search_preparers  # slow to import

    return search_preparers(retriever)

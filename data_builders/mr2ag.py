"""mR²AG-IT examples from questions and articles (mR²AG, section 3.3): which passages hang from a question, and as what.

Pure functions over passages; reading, retrieving and writing are in `reflection_run`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from reflectune.core.types import Branch, Passage, Question, ReflectionExample
from reflectune.data_builders.annotators import ANNOTATORS, Annotator

Item = TypeVar("Item")


@dataclass(frozen=True)
class Recipe:
    """How many passages of which source hang from a knowledge-based question.

    Attributes:
        positives: At most this many evidence paragraphs.
        same_article: Other paragraphs of the question's own articles.
        retrieved: Paragraphs of other entries that the retriever ranks high for the question's image, under the
            evidence's heading where there is one (source `look_alike`), else any (source `retrieved`).
        random: Paragraphs of entries drawn at random.
        annotator: Name of the annotator that tells evidence.
        seed: Of every draw, together with the question's id.
    """

    positives: int = 1
    same_article: int = 2
    retrieved: int = 2
    random: int = 1
    annotator: str = "string"
    seed: int = 0


@dataclass(frozen=True)
class Outcome:
    """What became of a question: an example, or the reason why there is none.

    Attributes:
        example: The training example, or None.
        reason: Why there is none.
        answer_elsewhere: Passages that the strict filter kept from being negatives, because an answer occurs in them.
    """

    example: ReflectionExample | None
    reason: str = ""
    answer_elsewhere: int = 0


NO_EVIDENCE = "no paragraph of the question's articles is evidence"


def knowledge_example(
    question: Question,
    article: Sequence[Passage],
    ranked: Sequence[Sequence[Passage]],
    draw_article: Callable[[random.Random], Sequence[Passage]],
    recipe: Recipe,
) -> Outcome:
    """Hang passages from a knowledge-based question.

    A passage is `[Relevant]` if the annotator finds evidence in it and, where the data set says in which sections the
    evidence stands, it is in one of them. It can be a negative only if the annotator finds no answer in it: "ensuring
    answers appear only in evidence paragraphs" (section 3.3).

    Args:
        question: The question.
        article: The passages of the entries that the image shows.
        ranked: For each other entry that the retriever ranked high, best first: its passages.
        draw_article: Draws the passages of an entry at random.
        recipe: How many passages of which source.
    """
    chosen = _Draw(question, ANNOTATORS[recipe.annotator], random.Random(f"{recipe.seed}:{question.id}"))
    sections = {(evidence.entry_id, evidence.section) for evidence in question.evidence}
    evidence = [p for p in article if not sections or (p.entry_id, p.section) in sections]
    positives = chosen.positives(evidence, recipe.positives)
    if not positives:
        return Outcome(None, NO_EVIDENCE)
    headings = {branch.passage.heading for branch in positives}
    retrieved = chosen.negatives("retrieved", _same_heading_first(ranked, headings, chosen.rng), recipe.retrieved)
    branches = [
        *positives,
        *chosen.negatives("same_article", [chosen.shuffled(article)], recipe.same_article, per_article=len(article)),
        *(
            replace(branch, source="look_alike") if branch.passage.heading in headings else branch
            for branch in retrieved
        ),
        *chosen.random_negatives(draw_article, recipe.random, headings),
    ]
    return Outcome(
        ReflectionExample(
            id=question.id,
            image=question.image,
            question=question.text,
            retrieve=True,
            branches=tuple(chosen.shuffled(branches)),
            multi_answer=question.answer_type == "multi_answer",
            source=question.split,
        ),
        answer_elsewhere=chosen.answer_elsewhere,
    )


def visual_example(question: Question) -> ReflectionExample:
    """A visual-dependent question: no retrieval, and its first answer."""
    return ReflectionExample(
        id=question.id,
        image=question.image,
        question=question.text,
        retrieve=False,
        answer=question.answers[0],
        multi_answer=question.answer_type == "multi_answer",
        source=question.split,
    )


def question_problem(question: Question) -> str:
    """What makes a question unfit for training, or ""."""
    if not question.text.strip():
        return "the question is empty"
    if not question.image.strip():
        return "the question has no image"
    if not any(answer.strip() for answer in question.answers):
        return "the question has no answer"
    if question.requires_retrieval is not False and not question.entity_ids:
        return "the knowledge-based question names no entity"
    return ""


@dataclass
class _Draw:
    """The draws for one question: no passage twice, and no negative in which an answer occurs."""

    question: Question
    annotate: Annotator
    rng: random.Random
    used: set[str] = field(default_factory=set)
    answer_elsewhere: int = 0

    def shuffled(self, items: Sequence[Item]) -> list[Item]:
        return self.rng.sample(list(items), len(items))

    def positives(self, passages: Sequence[Passage], wanted: int) -> list[Branch]:
        """Up to `wanted` evidence passages; the rest of the evidence is never a negative."""
        judged = [(passage, self.annotate(self.question, passage)) for passage in passages]
        relevant = [
            Branch(passage, True, judgement.answer, "gold") for passage, judgement in judged if judgement.relevant
        ]
        self.used.update(branch.passage.id for branch in relevant)
        return self.shuffled(relevant)[:wanted]

    def negatives(
        self, source: str, articles: Sequence[Sequence[Passage]], wanted: int, per_article: int = 1
    ) -> list[Branch]:
        """Up to `wanted` negatives, taking up to `per_article` from each article in turn."""
        found: list[Branch] = []
        for passages in articles:
            here = 0
            for passage in passages:
                if len(found) == wanted or here == per_article:
                    break
                if passage.id not in self.used and self._is_negative(passage):
                    found.append(Branch(passage, False, "", source))
                    here += 1
        return found

    def random_negatives(
        self, draw_article: Callable[[random.Random], Sequence[Passage]], wanted: int, headings: set[str]
    ) -> list[Branch]:
        """Negatives of random entries, half of the time under an evidence passage's heading if there is one."""
        found: list[Branch] = []
        for _ in range(10 * wanted):  # an entry may have no fit passage; draw another one, but not for ever
            if len(found) == wanted:
                break
            passages = self.shuffled(draw_article(self.rng))
            if self.rng.random() < 0.5:
                passages.sort(key=lambda passage: passage.heading not in headings)
            passages = [passage for passage in passages if passage.entry_id not in self.question.entity_ids]
            found += self.negatives("random", [passages], 1)
        return found

    def _is_negative(self, passage: Passage) -> bool:
        self.used.add(passage.id)
        if self.annotate(self.question, passage).relevant:
            self.answer_elsewhere += 1
            return False
        return True


def _same_heading_first(
    ranked: Sequence[Sequence[Passage]], headings: set[str], rng: random.Random
) -> list[list[Passage]]:
    """The ranked entries in a drawn order: first those with a passage under the evidence's headings, that one first."""
    articles = [rng.sample(list(passages), len(passages)) for passages in ranked]
    rng.shuffle(articles)
    for passages in articles:
        passages.sort(key=lambda passage: passage.heading not in headings)
    return sorted(articles, key=lambda passages: not passages or passages[0].heading not in headings)

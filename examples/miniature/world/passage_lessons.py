"""Lessons of a miniature text retriever: find the passage that states the answer to a question.

Articles are invented on the spot, with looks that training may use, and questions are asked in words that training may
use. They are built as a world's are: half of them are look-alikes with the same relations; some repeat a fact in other
words, name a neighbour, or quote an outdated guide to a different entity.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from reflectune.core.types import Passage, Section
from reflectune.examples.miniature.models.contrastive import PassageLesson
from reflectune.examples.miniature.world.entities import Entity, Looks, article, look_alike, make_entity, random_looks
from reflectune.examples.miniature.world.facts import ask, state
from reflectune.formats.passages import Lead, split_passages
from reflectune.models.rendering.turns import passage_text

_PAIRS = 8
"""Originals of a lesson; each has a look-alike."""


@dataclass(frozen=True)
class _TopicArticle:
    """An entity's passages, and the topic of each: a relation, `outdated`, or `neighbour`."""

    entity: Entity
    passages: Sequence[Passage]
    relations: Sequence[str]


class Librarian:
    """Draws lessons in finding passages.

    Args:
        rng: Generator of everything.
        held_out: True draws looks and phrasings that training may not use: for exams.
    """

    def __init__(self, rng: random.Random, *, held_out: bool = False) -> None:
        self._rng, self._held_out = rng, held_out

    def lesson(self) -> PassageLesson:
        """Draw a question about each fact of sixteen articles, with all their passages."""
        articles = []
        lead: Lead = "none" if self._rng.random() < 0.2 else "first_sentence"
        for _ in range(_PAIRS):
            original = make_entity("", random_looks(self._rng, held_out=self._held_out), self._rng)
            relations = self._rng.sample(list(original.facts), len(original.facts))
            double = make_entity("", self._look_alike(original.looks), self._rng, relations)
            articles += [self._article(original, lead), self._article(double, lead)]
        return self._questions(articles, [(page, fact) for page in articles for fact in page.entity.facts])

    def exam(self, articles: int) -> PassageLesson:
        """Draw one question with the passages of its article and of `articles` - 1 others.

        The first other is about a look-alike with the same relations; the rest are of the same category.
        """
        original = make_entity("", random_looks(self._rng, held_out=self._held_out), self._rng)
        entities = [original]
        while len(entities) < articles:
            looks = self._look_alike(original.looks) if len(entities) == 1 else self._same_category(original.looks)
            entities.append(make_entity("", looks, self._rng, list(original.facts) if len(entities) == 1 else 4))
        choice = [self._article(page, "first_sentence") for page in entities]
        return self._questions(choice, [(choice[0], self._rng.choice(list(original.facts)))])

    def _questions(
        self, articles: Sequence[_TopicArticle], article_facts: Sequence[tuple[_TopicArticle, str]]
    ) -> PassageLesson:
        owners = [(page, relation) for page in articles for relation in page.relations]
        questions, gold, neutral = [], [], []
        for page, fact in article_facts:
            category = page.entity.looks.category
            questions.append(ask(fact, category, self._rng, "held_out" if self._held_out else "train"))
            same = [
                row
                for row, (other, relation) in enumerate(owners)
                if relation == fact and other.entity.looks.category == category
            ]
            first = next(row for row in same if owners[row][0] is page)
            gold.append(first)
            neutral.append([row for row in same if row != first])
        passages = [passage_text(passage) for page in articles for passage in page.passages]
        return PassageLesson(questions, passages, gold, neutral)

    def _article(self, entity: Entity, lead: Lead) -> _TopicArticle:
        """Write an entity's article, with the extra sections of a world's articles more often than there."""
        rng, relations, more = self._rng, list(entity.facts), []
        category = entity.looks.category
        if rng.random() < 0.2:
            stated = rng.choice(relations)
            more.append((stated, Section("Chronicle", state(stated, category, entity.facts[stated], rng))))
        if rng.random() < 0.3:
            other = make_entity("", self._any_looks(), rng, 1)
            (stated, value), kind = next(iter(other.facts.items())), other.looks.category
            text = f"An outdated guide says of the {other.title}: {state(stated, kind, value, rng)}"
            more.append(("outdated", Section("Errors", text)))
        if rng.random() < 0.2:
            neighbour = make_entity("", self._any_looks(), rng, [])
            more.append(("neighbour", Section("Neighbours", f"Beside it stands the {neighbour.title}.")))
        entry = article(entity, rng, more=[section for _, section in more])
        passages = split_passages(entry, lead=lead)
        return _TopicArticle(entity, passages, [*relations, *(relation for relation, _ in more)])

    def _any_looks(self) -> Looks:
        return random_looks(self._rng, held_out=self._held_out)

    def _look_alike(self, looks: Looks) -> Looks:
        while True:
            shown = look_alike(looks, self._rng.choice((1, 2)), self._rng)
            if shown.held_out == self._held_out and shown.category == looks.category:
                return shown

    def _same_category(self, looks: Looks) -> Looks:
        while True:
            shown = self._any_looks()
            if shown.category == looks.category:
                return shown

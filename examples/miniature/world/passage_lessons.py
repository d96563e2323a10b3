"""What a miniature text retriever is taught: which passage of which article states what a question asks for.

Articles are invented on the spot, with looks that training may use, and questions are asked in words that training may
use. They are built as a world's are: half of them are look-alikes that tell of the same things; some repeat a fact in
other words, name a neighbour, or quote an outdated guide to something else.
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
class _Article:
    """An entity's passages, and what each tells of: a relation, `outdated`, or `neighbour`."""

    entity: Entity
    passages: Sequence[Passage]
    relations: Sequence[str]


class Librarian:
    """Draws lessons in finding passages.

    Args:
        rng: Source of everything.
        held_out: Whether looks and phrasings are those that training may not use: for exams.
    """

    def __init__(self, rng: random.Random, *, held_out: bool = False) -> None:
        self._rng, self._held_out = rng, held_out

    def lesson(self) -> PassageLesson:
        """A question about each fact of sixteen articles, among all their passages."""
        articles = []
        lead: Lead = "none" if self._rng.random() < 0.2 else "first_sentence"
        for _ in range(_PAIRS):
            original = make_entity("", random_looks(self._rng, held_out=self._held_out), self._rng)
            relations = self._rng.sample(list(original.facts), len(original.facts))
            double = make_entity("", self._look_alike(original.looks), self._rng, relations)
            articles += [self._article(original, lead), self._article(double, lead)]
        return self._questions(articles, [(one, fact) for one in articles for fact in one.entity.facts])

    def exam(self, articles: int) -> PassageLesson:
        """One question among the passages of its article and of `articles` - 1 others.

        The first other is a look-alike that tells of the same things; the rest are of the same category.
        """
        original = make_entity("", random_looks(self._rng, held_out=self._held_out), self._rng)
        entities = [original]
        while len(entities) < articles:
            looks = self._look_alike(original.looks) if len(entities) == 1 else self._same_category(original.looks)
            entities.append(make_entity("", looks, self._rng, list(original.facts) if len(entities) == 1 else 4))
        choice = [self._article(one, "first_sentence") for one in entities]
        return self._questions(choice, [(choice[0], self._rng.choice(list(original.facts)))])

    def _questions(self, articles: Sequence[_Article], article_facts: Sequence[tuple[_Article, str]]) -> PassageLesson:
        owners = [(one, relation) for one in articles for relation in one.relations]
        questions, gold, neutral = [], [], []
        for one, fact in article_facts:
            category = one.entity.looks.category
            questions.append(ask(fact, category, self._rng, "held_out" if self._held_out else "train"))
            same = [
                place
                for place, (other, relation) in enumerate(owners)
                if relation == fact and other.entity.looks.category == category
            ]
            first = next(place for place in same if owners[place][0] is one)
            gold.append(first)
            neutral.append([place for place in same if place != first])
        passages = [passage_text(passage) for one in articles for passage in one.passages]
        return PassageLesson(questions, passages, gold, neutral)

    def _article(self, entity: Entity, lead: Lead) -> _Article:
        """An entity's article, with the further sections that some articles of a world have, here more often."""
        rng, relations, more = self._rng, list(entity.facts), []
        category = entity.looks.category
        if rng.random() < 0.2:
            told = rng.choice(relations)
            more.append((told, Section("Chronicle", state(told, category, entity.facts[told], rng))))
        if rng.random() < 0.3:
            other = make_entity("", self._any_looks(), rng, 1)
            (told, value), kind = next(iter(other.facts.items())), other.looks.category
            text = f"An outdated guide says of the {other.title}: {state(told, kind, value, rng)}"
            more.append(("outdated", Section("Errors", text)))
        if rng.random() < 0.2:
            beside = make_entity("", self._any_looks(), rng, [])
            more.append(("neighbour", Section("Neighbours", f"Beside it stands the {beside.title}.")))
        entry = article(entity, rng, more=[section for _, section in more])
        passages = split_passages(entry, lead=lead)
        return _Article(entity, passages, [*relations, *(relation for relation, _ in more)])

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

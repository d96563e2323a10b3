"""Population of a world: famous entities, those of each split, their look-alikes, and the articles about them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from reflectune.core.types import Entry, Section
from reflectune.examples.miniature.world.entities import (
    ALL_LOOKS,
    ATTRIBUTES,
    Entity,
    Looks,
    article,
    change_attribute,
    famous_entities,
    make_entity,
)
from reflectune.examples.miniature.world.facts import RELATIONS, state

Role = Literal["famous", "train", "val", "test", "bystander"]


@dataclass(frozen=True)
class WorldSize:
    """Numbers of a world's entities; each has a look-alike that differs from it in one attribute.

    Attributes:
        train: Entities whose looks training may use, without the famous ones. The two unseen-question splits ask about
            facts of theirs that the train split doesn't ask about.
        val: Entities of `val_unseen_entity`, with held-out looks.
        test: Entities of `test_unseen_entity`, with held-out looks.
    """

    train: int
    val: int
    test: int


SIZES: dict[str, WorldSize] = {
    "tiny": WorldSize(train=12, val=6, test=4),
    "default": WorldSize(train=160, val=80, test=40),
}


@dataclass
class EntityArticle:
    """An entity's entry: the relation of each of its sections, and the sections that are not the facts' own.

    `relations` holds, for each section, a relation's name, or `outdated` or `neighbour` for the extra ones.
    """

    entity: Entity
    role: Role
    relations: list[str]
    extra: list[Section] = field(default_factory=list)

    def add(self, relation: str, section: Section) -> None:
        """Append a section of a relation."""
        self.relations.append(relation)
        self.extra.append(section)

    def sections_of(self, relation: str) -> list[int]:
        """Return the indices of a relation's sections."""
        return [index for index, name in enumerate(self.relations) if name == relation]

    def entry(self, rng: random.Random, images: tuple[str, ...]) -> Entry:
        """Return the encyclopedia's entry."""
        return article(self.entity, rng, images=images, more=self.extra)


NEIGHBOURS = 1 / 7
"""Share of the articles that name a neighbour of their entity."""


def populate(size: WorldSize, rng: random.Random, neighbours: float) -> list[EntityArticle]:
    """Invent all entities of a world, and the extra sections of its articles.

    Args:
        size: Numbers of entities.
        rng: Generator of everything that isn't the same in every world.
        neighbours: Share of the articles, of entities with a split, that name a neighbour of their entity.
    """
    articles = [_article(entity, "famous") for entity in famous_entities()]
    free = _FreeLooks({a.entity.looks for a in articles}, rng)
    wanted: tuple[tuple[Role, int, bool], ...] = (
        ("train", size.train, False),
        ("val", size.val, True),
        ("test", size.test, True),
    )
    for role, count, held_out in wanted:
        for number in range(count):
            articles.append(_article(make_entity(f"{role}-{number:05d}", free.draw(held_out), rng), role))
    for original in [a for a in articles if a.role != "famous"]:
        if (looks := free.near(original.entity.looks)) is not None:
            # it has the same relations, so that only its looks tell it from the original
            relations = rng.sample(list(original.entity.facts), len(original.entity.facts))
            entity = make_entity(f"{original.entity.id}-like-0", looks, rng, relations)
            articles.append(_article(entity, "bystander"))
    _repeat_facts(articles, rng)
    _add_outdated(articles, rng)
    _add_neighbours(articles, neighbours, rng)
    return articles


def _article(entity: Entity, role: Role) -> EntityArticle:
    return EntityArticle(entity, role, list(entity.facts))


class _FreeLooks:
    """Draws combinations of looks, each once."""

    def __init__(self, taken: set[Looks], rng: random.Random) -> None:
        self._taken, self._rng = taken, rng
        self._turn = 0

    def draw(self, held_out: bool) -> Looks:
        """Draw a combination that training may use, or a held-out one."""
        pool = [looks for looks in ALL_LOOKS if looks.held_out == held_out and looks not in self._taken]
        return self._take(self._rng.choice(pool))

    def near(self, looks: Looks) -> Looks | None:
        """Draw a combination that differs in one attribute (in turn); None if they are taken."""
        for _ in range(40):
            other = change_attribute(looks, ATTRIBUTES[self._turn % len(ATTRIBUTES)], self._rng)
            if other not in self._taken and other.category == looks.category:
                self._turn += 1
                return self._take(other)
        return None

    def _take(self, looks: Looks) -> Looks:
        self._taken.add(looks)
        return looks


def _repeat_facts(articles: Sequence[EntityArticle], rng: random.Random) -> None:
    """Add to one article of seven a second section that states a fact in other words."""
    for page in articles:
        if page.role != "famous" and rng.random() < 1 / 7:
            relation = rng.choice(list(page.entity.facts))
            text = state(relation, page.entity.looks.category, page.entity.facts[relation], rng)
            page.add(relation, Section("Chronicle", text))


def _add_outdated(articles: Sequence[EntityArticle], rng: random.Random) -> None:
    """Add to one article of ten an outdated guide to a different entity, with a wrong value of a fact of its."""
    for page in articles:
        if rng.random() >= 0.1:
            continue
        other = rng.choice(articles).entity
        if other is page.entity:
            continue
        relation = rng.choice(list(other.facts))
        wording = RELATIONS[relation].wording(other.looks.category)
        wrong = wording.value(rng)
        while wrong == other.facts[relation]:
            wrong = wording.value(rng)
        text = f"An outdated guide says of the {other.title}: {state(relation, other.looks.category, wrong, rng)}"
        page.add("outdated", Section("Errors", text))


def _add_neighbours(articles: Sequence[EntityArticle], share: float, rng: random.Random) -> None:
    """Add to some articles a neighbour of their entity: the first hop of a two-hop question."""
    for page in articles:
        if page.role in ("train", "val", "test") and rng.random() < share:
            other = rng.choice(articles).entity
            if other is not page.entity:
                page.add("neighbour", Section("Neighbours", f"Beside it stands the {other.title}."))


def constructed_look_alike(entity: Entity, attribute: str, relation: str, rng: random.Random) -> Entity:
    """Invent an entity of no world that differs from the given one in one attribute and has the same relation.

    A changed kind keeps its category, so that the question's noun fits both.
    """
    looks = entity.looks
    while looks == entity.looks or looks.category != entity.looks.category:
        looks = change_attribute(entity.looks, attribute, rng)  # type: ignore[arg-type]
    made = make_entity(f"{entity.id}~{attribute}", looks, rng, [relation])
    while made.facts[relation] == entity.facts[relation]:
        made = replace(made, facts={relation: RELATIONS[relation].wording(looks.category).value(rng)})
    return made

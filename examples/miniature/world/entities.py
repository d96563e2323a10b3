"""Entities with looks, a name and facts; their encyclopedia articles; and the famous ones of every world.

Looks are the visible attributes. Some combinations of them are held out of all training.
"""

from __future__ import annotations

import hashlib
import itertools
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Literal

from reflectune.core.types import Entry, Section
from reflectune.examples.miniature.world.facts import RELATIONS, state
from reflectune.examples.miniature.world.values import name

Attribute = Literal["kind", "colour", "ground", "mark"]

CATEGORY_OF_KIND = {
    "tower": "building",
    "castle": "building",
    "car": "vehicle",
    "train": "vehicle",
    "owl": "animal",
    "turtle": "animal",
    "tree": "plant",
    "flower": "plant",
    "drum": "instrument",
    "guitar": "instrument",
}
"""Category of each kind. Questions name it ("this building") as InfoSeek's do, so that the kind has to be seen."""

VALUES: dict[Attribute, tuple[str, ...]] = {
    "kind": tuple(CATEGORY_OF_KIND),
    "colour": ("red", "green", "blue", "yellow", "purple", "orange", "white", "black"),
    "ground": ("grass", "sand", "snow", "water", "rock"),
    "mark": ("star", "cross", "circle", "square", "triangle", "ring"),
}
ATTRIBUTES: tuple[Attribute, ...] = ("kind", "colour", "ground", "mark")
BALLOONS = (1, 2, 3, 4)
"""Numbers of balloons. An image has them, not an entity: no article states the number."""


@dataclass(frozen=True)
class Looks:
    """A combination of visible attributes. No two entities of a world share one."""

    kind: str
    colour: str
    ground: str
    mark: str

    @property
    def category(self) -> str:
        """The noun of a question: building, vehicle, animal, plant or instrument."""
        return CATEGORY_OF_KIND[self.kind]

    @property
    def held_out(self) -> bool:
        """True if this combination is kept out of pre-training and of the train split: a sixth of all."""
        name = "/".join((self.kind, self.colour, self.ground, self.mark))
        return hashlib.sha256(name.encode()).digest()[0] % 6 == 0


ALL_LOOKS = tuple(Looks(*values) for values in itertools.product(*(VALUES[name] for name in ATTRIBUTES)))


def change_attribute(looks: Looks, attribute: Attribute, rng: random.Random) -> Looks:
    """Return the looks with a different value of one attribute."""
    others = [value for value in VALUES[attribute] if value != getattr(looks, attribute)]
    return replace(looks, **{attribute: rng.choice(others)})


def look_alike(looks: Looks, differences: int, rng: random.Random) -> Looks:
    """Draw looks that differ from the given ones in exactly `differences` attributes, all equally likely."""
    for attribute in rng.sample(ATTRIBUTES, differences):
        looks = change_attribute(looks, attribute, rng)
    return looks


FAMOUS_SEED = 1889
FAMOUS_COUNT = 36

_SUMMARIES = (
    "A {colour} {kind} on {ground} with a {mark} sign.",
    "A {colour} {kind} with a {mark} sign, on {ground}.",
    "With a {mark} sign, a {colour} {kind} on {ground}.",
)
_REMARKS = (
    "It is known far beyond its valley.",
    "Few travellers pass by without a picture.",
    "Children draw it at school.",
)


@dataclass(frozen=True)
class Entity:
    """A thing of the world. `facts` maps each relation that its article covers to the value."""

    id: str
    title: str
    looks: Looks
    facts: dict[str, str]


def make_entity(entity_id: str, looks: Looks, rng: random.Random, relations: int | Sequence[str] = 4) -> Entity:
    """Invent an entity with these looks.

    Args:
        entity_id: Its id.
        looks: Its visible attributes.
        rng: Generator of name and facts.
        relations: Number of relations that its article covers, or their names.
    """
    chosen = rng.sample(list(RELATIONS), relations) if isinstance(relations, int) else list(relations)
    title = f"{name(rng)} {looks.kind.capitalize()}"
    facts = {relation: RELATIONS[relation].wording(looks.category).value(rng) for relation in chosen}
    return Entity(entity_id, title, looks, facts)


def describe(looks: Looks, rng: random.Random) -> str:
    """Return a sentence that describes an entity's looks. It opens the article's summary."""
    return rng.choice(_SUMMARIES).format(**asdict(looks))


def article(entity: Entity, rng: random.Random, *, images: tuple[str, ...] = (), more: Sequence[Section] = ()) -> Entry:
    """Return the encyclopedia's entry: a summary, a section for each fact in order, and `more` sections."""
    sections = [
        Section(RELATIONS[relation].heading, state(relation, entity.looks.category, value, rng))
        for relation, value in entity.facts.items()
    ]
    return Entry(
        id=entity.id,
        title=entity.title,
        url=f"https://miniature.example/{entity.title.replace(' ', '_')}",
        summary=f"{describe(entity.looks, rng)} {rng.choice(_REMARKS)}",
        images=images,
        sections=(*sections, *more),
    )


def random_looks(rng: random.Random, *, held_out: bool) -> Looks:
    """Draw a combination of looks, from those that training may see or from those held out."""
    while True:
        looks = rng.choice(ALL_LOOKS)
        if looks.held_out == held_out:
            return looks


def famous_entities() -> list[Entity]:
    """Return the entities of every world, whose facts the miniature base models know by heart.

    They don't depend on a world's seed: the facts that a base model has learned are true in every world.
    """
    rng = random.Random(FAMOUS_SEED)
    entities: list[Entity] = []
    taken = set()
    while len(entities) < FAMOUS_COUNT:
        looks = random_looks(rng, held_out=False)
        if looks not in taken:
            taken.add(looks)
            entities.append(make_entity(f"famous-{len(entities):02d}", looks, rng))
    return entities

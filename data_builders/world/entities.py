"""Entities: looks, a name, and facts; and the encyclopedia article that tells of them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from reflectune.core.types import Entry, Section
from reflectune.data_builders.world.facts import RELATIONS, name, state
from reflectune.data_builders.world.looks import ALL_LOOKS, Looks

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
        looks: What it looks like.
        rng: Source of name and facts.
        relations: How many relations its article covers, or which ones.
    """
    chosen = rng.sample(list(RELATIONS), relations) if isinstance(relations, int) else list(relations)
    title = f"{name(rng)} {looks.kind.capitalize()}"
    facts = {relation: RELATIONS[relation].wording(looks.category).value(rng) for relation in chosen}
    return Entity(entity_id, title, looks, facts)


def describe(looks: Looks, rng: random.Random) -> str:
    """One sentence that says what an entity looks like. It opens the article's summary."""
    values = {"kind": looks.kind, "colour": looks.colour, "ground": looks.ground, "mark": looks.mark}
    return rng.choice(_SUMMARIES).format(**values)


def article(entity: Entity, rng: random.Random, *, images: tuple[str, ...] = (), more: Sequence[Section] = ()) -> Entry:
    """The encyclopedia's entry: a summary, one section per fact in the order of `entity.facts`, and `more` sections."""
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
    """A combination of looks, drawn from those that training may see or from those held out."""
    while True:
        looks = rng.choice(ALL_LOOKS)
        if looks.held_out == held_out:
            return looks

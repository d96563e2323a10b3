"""What can be seen: the attributes of an entity's looks, and which combinations are held out of all training."""

from __future__ import annotations

import hashlib
import itertools
import random
from dataclasses import dataclass, replace
from typing import Literal

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
"""Questions name the category ("this building"), as InfoSeek's do, so the kind has to be seen."""

VALUES: dict[Attribute, tuple[str, ...]] = {
    "kind": tuple(CATEGORY_OF_KIND),
    "colour": ("red", "green", "blue", "yellow", "purple", "orange", "white", "black"),
    "ground": ("grass", "sand", "snow", "water", "rock"),
    "mark": ("star", "cross", "circle", "square", "triangle", "ring"),
}
ATTRIBUTES: tuple[Attribute, ...] = ("kind", "colour", "ground", "mark")
BALLOONS = (1, 2, 3, 4)
"""How many balloons a picture shows. It belongs to the picture, not to the entity: no article can tell."""


@dataclass(frozen=True)
class Looks:
    """One combination of visible attributes. No two entities of a world share one."""

    kind: str
    colour: str
    ground: str
    mark: str

    @property
    def category(self) -> str:
        """The noun that a question uses: building, vehicle, animal, plant or instrument."""
        return CATEGORY_OF_KIND[self.kind]

    @property
    def held_out(self) -> bool:
        """Whether this combination is kept out of pre-training and of the train split: a sixth of all."""
        name = "/".join((self.kind, self.colour, self.ground, self.mark))
        return hashlib.sha256(name.encode()).digest()[0] % 6 == 0

    def with_attribute(self, attribute: Attribute, value: str) -> Looks:
        """These looks with one attribute exchanged."""
        return replace(self, **{attribute: value})

    def differences(self, other: Looks) -> tuple[Attribute, ...]:
        """The attributes in which two looks differ."""
        return tuple(name for name in ATTRIBUTES if getattr(self, name) != getattr(other, name))


ALL_LOOKS = tuple(Looks(*values) for values in itertools.product(*(VALUES[name] for name in ATTRIBUTES)))


def change_attribute(looks: Looks, attribute: Attribute, rng: random.Random) -> Looks:
    """These looks with another value of one attribute."""
    return looks.with_attribute(attribute, rng.choice([v for v in VALUES[attribute] if v != getattr(looks, attribute)]))


def look_alike(looks: Looks, differences: int, rng: random.Random) -> Looks:
    """Looks that differ from the given ones in exactly `differences` attributes, each attribute as likely."""
    for attribute in rng.sample(ATTRIBUTES, differences):
        looks = change_attribute(looks, attribute, rng)
    return looks

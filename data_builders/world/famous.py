"""The famous entities: they stand in every world, and the miniature base models know their facts by heart."""

from __future__ import annotations

import random

from reflectune.data_builders.world.entities import Entity, make_entity, random_looks

FAMOUS_SEED = 1889
FAMOUS_COUNT = 36


def famous_entities() -> list[Entity]:
    """The same entities each time: what a base model learned must be true in every world, whatever the world's seed."""
    rng = random.Random(FAMOUS_SEED)
    entities: list[Entity] = []
    taken = set()
    while len(entities) < FAMOUS_COUNT:
        looks = random_looks(rng, held_out=False)
        if looks not in taken:
            taken.add(looks)
            entities.append(make_entity(f"famous-{len(entities):02d}", looks, rng))
    return entities

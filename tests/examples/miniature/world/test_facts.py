"""The language of questions: phrasings of lessons, of training, and held-out ones."""

import random
from collections.abc import Callable
from typing import Any

import pytest

from reflectune.examples.miniature.world.entities import ATTRIBUTES
from reflectune.examples.miniature.world.facts import RELATIONS, ask
from reflectune.examples.miniature.world.phrasings import VISUAL_QUESTIONS, ask_visual

GROUPS = ("taught", "varied", "held_out")
CATEGORIES = ["building", "plant", "animal", "vehicle", "instrument"]


def check(known: Any, category: str, ask_one: Callable[[random.Random, Any], str]) -> None:
    """Lessons, training, and validation each draw from their own phrasings, and the last from none of the others."""
    said = {group: {text.format(c=category) for text in getattr(known, group)} for group in GROUPS}
    assert len(set.union(*said.values())) == sum(map(len, said.values())) == sum(len(getattr(known, g)) for g in GROUPS)
    rng = random.Random(0)
    for phrasing, groups in (("taught", ["taught"]), ("train", ["taught", "varied"]), ("held_out", ["held_out"])):
        assert {ask_one(rng, phrasing) for _ in range(300)} == set.union(*(said[group] for group in groups))


@pytest.mark.parametrize("attribute", [*ATTRIBUTES, "count"])
def test_phrasings_of_visual_questions_are_held_out(attribute: str) -> None:
    check(VISUAL_QUESTIONS[attribute], "plant", lambda rng, phrasing: ask_visual(attribute, "plant", rng, phrasing))


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("category", CATEGORIES)
def test_phrasings_of_knowledge_questions_are_held_out(relation: str, category: str) -> None:
    known = RELATIONS[relation].wording(category)
    check(known, category, lambda rng, phrasing: ask(relation, category, rng, phrasing))

"""Truths about the language of questions: what training says, what is held out, and what a base model is taught."""

from __future__ import annotations

import random

import pytest

from reflectune.data_builders.world.facts import RELATIONS, VISUAL_QUESTIONS, ask, ask_visual
from reflectune.data_builders.world.looks import ATTRIBUTES


@pytest.mark.parametrize("attribute", [*ATTRIBUTES, "count"])
def test_phrasings_of_visual_questions_are_held_out(attribute: str) -> None:
    known = VISUAL_QUESTIONS[attribute]
    every = known.taught + known.varied + known.held_out
    assert len(set(every)) == len(every)

    def asked(phrasing: str) -> set[str]:
        rng = random.Random(0)
        return {ask_visual(attribute, "plant", rng, phrasing) for _ in range(300)}

    def written(*groups: tuple[str, ...]) -> set[str]:
        return {text.format(c="plant") for group in groups for text in group}

    assert asked("taught") == written(known.taught)
    assert asked("train") == written(known.taught, known.varied)
    assert asked("held_out") == written(known.held_out)


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("category", ["building", "plant", "animal", "vehicle", "instrument"])
def test_phrasings_of_knowledge_questions_are_held_out(relation: str, category: str) -> None:
    rng = random.Random(0)
    seen = {ask(relation, category, rng) for _ in range(200)}
    assert not seen & {ask(relation, category, rng, held_out=True) for _ in range(200)}

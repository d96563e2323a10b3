import dataclasses

import pytest

from reflectune.core.types import Evidence, Question

BARE = Question("q", "i.png", "What?")


@pytest.mark.parametrize(
    ("label", "names", "expected"),
    [
        (True, {}, True),
        (False, {}, False),
        (None, {}, None),
        (None, {"entity_ids": ("e1",)}, True),
        (None, {"evidence": (Evidence("e1", 0),)}, True),
        (False, {"entity_ids": ("e1",)}, False),
    ],
)
def test_a_question_is_knowledge_based_if_it_says_so_or_says_nothing_and_names_entities(label, names, expected) -> None:
    assert dataclasses.replace(BARE, requires_retrieval=label, **names).is_knowledge_based is expected

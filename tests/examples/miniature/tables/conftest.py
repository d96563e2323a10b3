"""Questions to tabulate."""

from types import SimpleNamespace
from typing import Any

import pytest

from reflectune.core.types import Question


@pytest.fixture
def make() -> SimpleNamespace:
    """Return a builder of questions; a fixture, since test modules cannot import one another."""

    def question(number: int, split: str = "val_unseen_entity", **more: Any) -> Question:
        values = {"image": "images/a.png", "text": "What is it made of?", "requires_retrieval": True, **more}
        return Question(id=f"q{number:03d}", answers=("oak",), split=split, **values)

    return SimpleNamespace(question=question)

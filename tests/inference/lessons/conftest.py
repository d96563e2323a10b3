"""Configs of lessons about a data set with its index."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from reflectune.core.types import Entry, Question
from reflectune.examples.lessons.config import LessonsConfig


@pytest.fixture
def lessons_about(tmp_path, encoder, checkpoints, make) -> Callable[..., Callable[..., LessonsConfig]]:
    def about(entries: Sequence[Entry], questions: Sequence[Question], **keys: Any) -> Callable[..., LessonsConfig]:
        root = tmp_path / "world"
        make.data_set(root, entries, questions, encoder, image_root=".")
        where = {"dataset": str(root), "index": str(root / "index"), "device": "cpu"}
        models = {"base_model": checkpoints.base, "output": str(tmp_path / "lessons"), "token_budget": 4096}
        return lambda **changes: LessonsConfig(**{**where, **models, **keys, **changes})

    return about

from __future__ import annotations

from pathlib import Path

import pytest

from reflectune.core.errors import UserError
from reflectune.core.types import Evidence, Question
from reflectune.data_builders.dataset import load_manifest, read_questions, splits, write_questions

QUESTIONS = [
    Question("a", "images/a.jpg", "How tall?", ("56 metres",), (50.4, 61.6), "numerical", "val", True, ("e1",),
             (Evidence("e1", 2),), {"relation": "height"}),
    Question("b", "images/b.jpg", "What colour is it? “ü”", ("red",), split="val", requires_retrieval=False),
    Question("c", "images/c.jpg", "Who?", requires_retrieval=None, split="val"),
]  # fmt: skip


def test_questions_survive_the_disk(tmp_path: Path) -> None:
    write_questions(tmp_path, "val", QUESTIONS)
    assert read_questions(tmp_path, "val") == QUESTIONS
    assert splits(tmp_path) == ["val"]


def test_a_missing_split_names_those_that_exist(tmp_path: Path) -> None:
    write_questions(tmp_path, "val", QUESTIONS)
    with pytest.raises(UserError, match="has the splits val"):
        read_questions(tmp_path, "train")


def test_a_damaged_split_is_a_user_error(tmp_path: Path) -> None:
    path = write_questions(tmp_path, "val", QUESTIONS)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(UserError, match="damaged"):
        read_questions(tmp_path, "val")


def test_a_folder_without_a_manifest_is_a_user_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="manifest is missing"):
        load_manifest(tmp_path)

from pathlib import Path
from typing import Any

import pytest

from reflectune.core.errors import UserError
from reflectune.core.types import Question

from .conftest import array, draw, read_set

ROW: dict[str, Any] = {
    "split": "val",
    "image_id": 461751,
    "question_id": "22jbM6gDxdaMaunuzgrsBB",
    "question": "What is in the motorcyclist's mouth?",
    "choices": ["toothpick", "food", "popsicle stick", "cigarette"],
    "correct_choice_idx": 3,
    "direct_answers": ["smoke", *["cigarette"] * 9],
    "difficult_direct_answer": False,
    "rationales": ["He's smoking while riding.", "The man smokes.", "It is a cigarette."],
}
META = {"choices": "toothpick\nfood\npopsicle stick\ncigarette", "difficult_direct_answer": "false"}
HIDDEN = ("correct_choice_idx", "direct_answers", "rationales")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return draw(tmp_path, "val2017/000000461751.jpg")


def read(folder: Path, *rows: object) -> list[Question]:
    return read_set("aokvqa", array(folder / "aokvqa_v1p0_val.json", *rows), folder, split="val")


def test_a_question_with_its_ten_answers_and_its_choices(folder: Path) -> None:
    answers = (*["cigarette"] * 9, "smoke")
    meta = META | {"correct_choice": "cigarette", "rationale": "He's smoking while riding."}
    assert read(folder, ROW) == [
        Question(ROW["question_id"], "val2017/000000461751.jpg", ROW["question"], answers, split="val", meta=meta)
    ]


def test_the_index_of_the_right_choice_counts_empty_choices(folder: Path) -> None:
    (question,) = read(folder, {**ROW, "choices": ["", "food", "stick", "cigarette"], "correct_choice_idx": 2})
    assert question.meta["correct_choice"] == "stick"


def test_the_test_file_has_no_answers(folder: Path) -> None:
    (question,) = read(folder, {name: value for name, value in ROW.items() if name not in HIDDEN})
    assert question.answers == ()
    assert question.meta == META


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"question": ""}, "field `question`: is empty"),
        ({"image_id": 1}, "field `image_id`: no image of `000000000001`"),
        ({"direct_answers": "smoke, food"}, "field `direct_answers`: is a text"),
        ({"direct_answers": [1]}, "field `direct_answers`"),
        ({"correct_choice_idx": 4}, "field `correct_choice_idx`: is 4 of 4 choices"),
        ({"choices": ["food", ""], "correct_choice_idx": 1}, "field `correct_choice_idx`: is 1 of 2 choices"),
        ({"difficult_direct_answer": "perhaps"}, "true or false"),
    ],
)
def test_a_bad_row_is_named(folder: Path, change: dict[str, Any], problem: str) -> None:
    with pytest.raises(UserError, match=f"aokvqa_v1p0_val.json:2: .*{problem}"):
        read(folder, ROW, {**ROW, **change})

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from reflectune.core.errors import UserError
from reflectune.core.rejected import BadRow
from reflectune.core.types import FollowUp, Question

from .conftest import array, draw, read_set


def talk(*turns: str) -> list[dict[str, str]]:
    return [{"from": ("human", "gpt")[place % 2], "value": turn} for place, turn in enumerate(turns)]


ROAD = "No, it stands at the side of the road."
TURNS = talk("<image>\nWhat are the colors of the bus?", "The bus is white and red.", "Is it moving?", ROAD)
BUS: dict[str, Any] = {"id": "000000033471", "image": "coco/train2017/000000033471.jpg", "conversations": TURNS}
DETAIL = {**BUS, "conversations": talk("Describe the image.\n<image>", "A bus.")}
SHARED = {"id": "wgfCQLB_0", "conversations": talk("", "Hello.", "Write a poem.", "Roses are red.")[1:]}
ASKED = talk("<image>\nWho wrote it?\nAnswer with a phrase.", "Ann")
BOOK = {"id": 2354786, "image": "vg/VG_100K/2354786.jpg", "conversations": ASKED}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return draw(tmp_path, "coco/train2017/000000033471.jpg", "vg/VG_100K/2354786.jpg")


def read(folder: Path, *rows: object, **options: Any) -> list[Question]:
    return read_set("llava_instruct", array(folder / "llava_v1_5_mix665k.json", *rows), folder, **options)


def question(name: str, image: str, text: str, answer: str, *follow_ups: FollowUp) -> Question:
    answered = Question(name, image, text, (answer,), answer_type="free_form", split="train")
    return replace(answered, requires_retrieval=False, follow_ups=follow_ups)


MOVING = FollowUp("Is it moving?", ROAD)
BUSES = question(BUS["id"], BUS["image"], "What are the colors of the bus?", "The bus is white and red.", MOVING)
DESCRIBED = question("000000033471-2", BUS["image"], "Describe the image.", "A bus.")
WRITTEN = question("2354786", "vg/VG_100K/2354786.jpg", "Who wrote it?\nAnswer with a phrase.", "Ann")
POEM = question("wgfCQLB_0", "", "Write a poem.", "Roses are red.")
ROWS = (BUS, SHARED, DETAIL, BOOK)


def test_a_conversation_is_one_question_with_all_that_follows(folder: Path) -> None:
    assert read(folder, *ROWS) == [BUSES, DESCRIBED, WRITTEN]
    assert read(folder, *ROWS, text_only=True) == [BUSES, POEM, DESCRIBED, WRITTEN]


def test_the_150k_names_the_image_alone(folder: Path) -> None:
    (described,) = read(folder / "coco", {**DETAIL, "image": "000000033471.jpg"})
    assert described.image == "train2017/000000033471.jpg"


def test_a_missing_image_does_not_change_the_other_ids(folder: Path) -> None:
    noted: list[BadRow] = []
    assert read(folder, {**BUS, "image": "coco/train2017/1.jpg"}, DETAIL, reject=noted.append) == [DESCRIBED]
    assert "llava_v1_5_mix665k.json:1: id 000000033471: field `image`: no image of" in str(noted[0])


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"id": None}, "field `id`: is null"),
        ({"conversations": "Hello"}, "field `conversations`: is 'Hello'"),
        ({"conversations": BUS["conversations"][1:2]}, "has no turn of `human`"),
        ({"conversations": [{"from": "user", "value": "a"}]}, "field `from`: is 'user'"),
        ({"conversations": [{"from": "human", "value": "<image>"}, BUS["conversations"][1]]}, "asks nothing"),
        ({"conversations": [BUS["conversations"][0], {"from": "gpt", "value": ""}]}, "field `value`: is empty"),
    ],
)
def test_a_bad_row_is_named(folder: Path, change: dict[str, Any], problem: str) -> None:
    with pytest.raises(UserError, match=f"llava_v1_5_mix665k.json:2: .*{problem}"):
        read(folder, DETAIL, {**BUS, **change})

import json
from pathlib import Path
from typing import Any

import pytest

from reflectune.core.errors import UserError
from reflectune.core.rejected import BadRow
from reflectune.core.types import Question
from reflectune.data_builders.readers.images import ImageFolder

from .conftest import encoded, parquet, read_set

NAME, IMAGE = "mmsearch_r1_infoseek_sub_2k.parquet", encoded("red")


ROW: dict[str, Any] = {
    "prompt": [{"role": "user", "content": "<image>\nWhat is the architectural style of this building?"}],
    "images": [{"bytes": IMAGE, "path": None}],
    "reward_model": {
        "candidate_answers": '["Ishi-no-ma-zukuri", "gongen-zukuri"]',
        "ground_truth": "gongen-zukuri",
        "style": "rule",
    },
    "data_id": "infoseek_human_0",
    "image_id": "oven_04958159",
    "data_source": "mmsearch_r1/infoseek_sub_2k",
    "category": "infoseek",
}
META = {"image_id": "oven_04958159", "data_source": "mmsearch_r1/infoseek_sub_2k", "category": "infoseek"}


def read(path: Path, folder: Path, **options: object) -> list[Question]:
    return read_set("infoseek_human", path, ImageFolder(folder, folder / "saved"), split="human", **options)


def test_the_subset_with_answers_and_images(tmp_path: Path) -> None:
    reward = {"candidate_answers": "", "ground_truth": "1888", "style": "rule"}
    path = parquet(tmp_path / NAME, ROW, {**ROW, "data_id": None, "reward_model": reward})
    first, second = read(path, tmp_path)
    assert first == Question(
        *("infoseek_human_0", first.image, "What is the architectural style of this building?"),
        *(("gongen-zukuri", "Ishi-no-ma-zukuri"), None, "string", "human", True),
        meta=META,
    )
    assert (tmp_path / first.image).read_bytes() == IMAGE
    assert (second.id, second.answers, second.answer_type) == ("mmsearch_r1_infoseek_sub_2k_1", ("1888",), "time")


def test_a_row_without_an_image_has_that_of_oven(tmp_path: Path) -> None:
    (tmp_path / "04").mkdir()
    (tmp_path / "04" / "oven_04958159.jpg").write_bytes(IMAGE)
    for images in (None, [{"bytes": None, "path": "/home/somebody/1.jpg"}]):
        (question,) = read(parquet(tmp_path / NAME, {**ROW, "images": images}), tmp_path)
        assert question.image == "04/oven_04958159.jpg"
    with pytest.raises(UserError, match=r"2k.parquet:1: id infoseek_human_0: field `image_id`: no image of `oven_1`"):
        read(parquet(tmp_path / NAME, {**ROW, "images": None, "image_id": "oven_1"}), tmp_path)


def test_infoseeks_own_file_without_answers(tmp_path: Path) -> None:
    (tmp_path / "oven_04958159.jpg").write_bytes(IMAGE)
    row = {"data_id": "infoseek_human_00000000", "image_id": "oven_04958159", "question": "Who built it?"}
    path = tmp_path / "infoseek_human.jsonl"
    path.write_text(json.dumps(row) + "\n" + json.dumps(row)[:50] + "\n")
    bad: list[BadRow] = []
    assert read(path, tmp_path, reject=bad.append) == [
        Question(
            "infoseek_human_00000000", "oven_04958159.jpg", "Who built it?", split="human", requires_retrieval=True
        )
    ]
    assert [error.line for error in bad] == [2]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"images": [{"bytes": b"x", "path": None}]}, "field `images`: 1 bytes are not an image"),
        ({"images": ROW["images"] * 2}, "field `images`: has 2 images"),
    ],
)
def test_a_bad_row_is_named(tmp_path: Path, change: dict[str, Any], problem: str) -> None:
    path = parquet(tmp_path / NAME, {**ROW, **change})
    with pytest.raises(UserError, match=rf"sub_2k.parquet:1: id infoseek_human_0: {problem}"):
        read(path, tmp_path)


def test_other_sources_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"read from .parquet, a folder of such, or .jsonl"):
        read(tmp_path / "human.csv", tmp_path)

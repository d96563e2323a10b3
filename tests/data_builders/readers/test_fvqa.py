import json
from pathlib import Path

import pytest

from reflectune.core.errors import UserError
from reflectune.core.types import Question
from reflectune.data_builders.readers.images import ImageFolder

from .conftest import encoded, parquet, read_set

RED = {"bytes": encoded("red"), "path": None}


def row(**changes: object) -> dict[str, object]:
    return {
        "data_id": "fvqa_train_0",
        "prompt": [{"content": "What is the country of origin of this food?", "role": "user"}],
        "images": [RED],
        "reward_model": {
            "candidate_answers": json.dumps(["Kingdom of Spain", "Spain", "ES"]),
            "ground_truth": "Spain",
            "style": "rule",
        },
        "data_source": "mmsearch_r1/fvqa_train",
        "image_urls": None,
        "category": "search_required",
        **changes,
    }


def read(path: Path, tmp_path: Path, **options: object) -> list[Question]:
    return read_set("fvqa", path, ImageFolder(tmp_path / "out", tmp_path / "out" / "images"), **options)


def test_the_training_file(tmp_path: Path) -> None:
    prompt = [{"content": "Answer briefly.", "role": "system"}, {"content": "<image>\nWho is it?", "role": "user"}]
    only_gold = {"candidate_answers": None, "ground_truth": "Ann", "style": "rule"}
    free = row(data_id="fvqa_train_1", prompt=prompt, reward_model=only_gold, category="search_free")
    first, second = read(parquet(tmp_path / "fvqa_train.parquet", row(), free), tmp_path)
    assert first == Question(
        *("fvqa_train_0", first.image, "What is the country of origin of this food?"),
        *(("Spain", "Kingdom of Spain", "ES"), None, "string", "train", True),
        meta={"category": "search_required", "data_source": "mmsearch_r1/fvqa_train"},
    )
    assert (tmp_path / "out" / first.image).read_bytes() == encoded("red")
    assert (second.text, second.answers, second.requires_retrieval) == ("Who is it?", ("Ann",), False)


def test_the_test_file_has_no_category_and_rows_without_an_id_are_numbered(tmp_path: Path) -> None:
    rows = [row(), row(prompt=[{"content": "Which?", "role": "user"}])]
    for one in rows:
        del one["category"], one["data_id"]
    numbered = read(parquet(tmp_path / "fvqa_test.parquet", *rows), tmp_path)
    assert [(one.id, one.requires_retrieval) for one in numbered] == [("fvqa_test_0", None), ("fvqa_test_1", None)]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"images": [RED, {"bytes": encoded("blue"), "path": None}]}, "field `images`: has 2 images"),
        ({"images": [{"bytes": b"GIF89a cut off", "path": None}]}, "field `images`: 14 bytes are not an image"),
        ({"prompt": [{"content": "Be brief.", "role": "system"}]}, "field `prompt`: has no question of the user"),
        ({"prompt": [{"content": "<image>", "role": "user"}]}, "field `prompt`: has no question"),
        ({"category": "search"}, "field `category`: is 'search'; it must be one of search_required, search_free"),
        ({"reward_model": {"candidate_answers": "[]", "ground_truth": " "}}, "field `ground_truth`: is empty"),
        ({"reward_model": {"candidate_answers": "[1", "ground_truth": "1"}}, "field `candidate_answers`: is not JSON"),
        ({"reward_model": {"candidate_answers": "{}", "ground_truth": "1"}}, "field `candidate_answers`: is {}"),
        ({"reward_model": "Spain"}, "field `reward_model`: is 'Spain'"),
    ],
)
def test_a_bad_row_is_named(tmp_path: Path, change: dict[str, object], problem: str) -> None:
    path = parquet(tmp_path / "fvqa_train.parquet", row(data_id="fvqa_train_7", **change))
    with pytest.raises(UserError, match=f"fvqa_train.parquet:1: id fvqa_train_7: {problem}"):
        read(path, tmp_path)

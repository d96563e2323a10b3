from pathlib import Path

import pytest

from reflectune.core.errors import UserError
from reflectune.core.types import Question
from reflectune.data_builders.readers.images import ImageFolder

from .conftest import encoded, parquet, read_set

IMAGE = {"bytes": encoded("green", "PNG"), "path": "query.png"}


def row(**changes: object) -> dict[str, object]:
    return {
        "sample_id": "12",
        "query": "When is the match of this team?",
        "query_image": IMAGE,
        "image_search_result": IMAGE,
        "area": "news",
        "subfield": "sports",
        "timestamp": "2024-06-01",
        "gt_requery": "Spain national team match June 2024",
        "gt_answer": "5 June",
        "alternative_gt_answers": ["June 5", "5 June"],
        **changes,
    }


def read(path: Path, tmp_path: Path, **options: object) -> list[Question]:
    images = ImageFolder(tmp_path / "out", tmp_path / "out" / "images")
    return read_set("mmsearch", path, images, split="end2end", **options)


def test_rows_with_an_image_and_on_request_all(tmp_path: Path) -> None:
    worded = row(sample_id="13", query_image=None, image_search_result=None, alternative_gt_answers=None)
    path = parquet(tmp_path / "end2end.parquet", worded, row())
    (with_images,) = read(path, tmp_path)
    answers, kept = ("5 June", "June 5"), ("area", "subfield", "timestamp", "gt_requery")
    assert with_images == Question(
        *("12", with_images.image, "When is the match of this team?", answers, None, "string", "end2end", True),
        meta={name: row()[name] for name in kept},
    )
    assert (tmp_path / "out" / with_images.image).read_bytes() == IMAGE["bytes"]
    both = read(path, tmp_path, text_only=True)
    assert [(one.id, bool(one.image), one.answers) for one in both] == [
        ("13", False, ("5 June",)),
        ("12", True, ("5 June", "June 5")),
    ]


def test_an_image_that_is_null_inside_is_none_and_an_empty_one_is_an_error(tmp_path: Path) -> None:
    path = parquet(tmp_path / "end2end.parquet", row(query_image={"bytes": None, "path": None}))
    assert read(path, tmp_path) == []
    path = parquet(tmp_path / "end2end.parquet", row(query_image={"bytes": b"", "path": None}))
    with pytest.raises(UserError, match="id 12: field `query_image`: is null, not an image"):
        read(path, tmp_path)


def test_a_number_is_read_as_an_id(tmp_path: Path) -> None:
    (question,) = read(parquet(tmp_path / "end2end.parquet", row(sample_id=12)), tmp_path)
    assert question.id == "12"


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"query": ""}, "field `query`: is empty"),
        ({"alternative_gt_answers": [5]}, "field `alternative_gt_answers`"),
        ({"query_image": {"bytes": b"no image", "path": None}}, "field `query_image`: 8 bytes are not an image"),
    ],
)
def test_a_bad_row_is_named(tmp_path: Path, change: dict[str, object], problem: str) -> None:
    path = parquet(tmp_path / "end2end.parquet", row(**change))
    with pytest.raises(UserError, match=f"end2end.parquet:1: id 12: {problem}"):
        read(path, tmp_path)


def test_a_file_without_the_column_of_images_is_refused(tmp_path: Path) -> None:
    rest = row()
    del rest["query_image"]
    with pytest.raises(UserError, match="field `query_image`"):
        read(parquet(tmp_path / "end2end.parquet", rest), tmp_path)

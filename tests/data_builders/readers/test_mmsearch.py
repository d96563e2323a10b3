import io
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from reflectune.core.errors import UserError
from reflectune.core.types import Question
from reflectune.data_builders.readers.images import ImageFolder
from reflectune.data_builders.readers.mmsearch import questions


def picture() -> dict[str, object]:
    buffer = io.BytesIO()
    Image.new("RGB", (4, 4), "green").save(buffer, "PNG")
    return {"bytes": buffer.getvalue(), "path": "query.png"}


def row(**changes: object) -> dict[str, object]:
    return {
        "sample_id": "12",
        "query": "When is the match of this team?",
        "query_image": picture(),
        "image_search_result": picture(),
        "area": "news",
        "subfield": "sports",
        "timestamp": "2024-06-01",
        "gt_requery": "Spain national team match June 2024",
        "gt_answer": "5 June",
        "alternative_gt_answers": ["June 5", "5 June"],
        **changes,
    }


def write(path: Path, *rows: dict[str, object]) -> Path:
    pq.write_table(pa.Table.from_pylist(list(rows)), path)
    return path


def read(path: Path, tmp_path: Path, **options: object) -> list[Question]:
    images = ImageFolder(tmp_path / "out", tmp_path / "out" / "images")
    return [question for question, _ in questions(path, split="end2end", images=images, **options)]  # type: ignore[arg-type]


def test_rows_with_a_picture_and_on_request_all(tmp_path: Path) -> None:
    worded = row(sample_id="13", query_image=None, image_search_result=None, alternative_gt_answers=None)
    path = write(tmp_path / "end2end.parquet", worded, row())
    (pictured,) = read(path, tmp_path)
    assert pictured == Question(
        id="12",
        image=pictured.image,
        text="When is the match of this team?",
        answers=("5 June", "June 5"),
        split="end2end",
        requires_retrieval=True,
        meta={
            "area": "news",
            "subfield": "sports",
            "timestamp": "2024-06-01",
            "gt_requery": "Spain national team match June 2024",
        },
    )
    assert (tmp_path / "out" / pictured.image).read_bytes() == picture()["bytes"]
    both = read(path, tmp_path, text_only=True)
    assert [(one.id, bool(one.image), one.answers) for one in both] == [
        ("13", False, ("5 June",)),
        ("12", True, ("5 June", "June 5")),
    ]


def test_a_picture_that_is_null_inside_is_none_and_an_empty_one_is_an_error(tmp_path: Path) -> None:
    path = write(tmp_path / "end2end.parquet", row(query_image={"bytes": None, "path": None}))
    assert read(path, tmp_path) == []
    path = write(tmp_path / "end2end.parquet", row(query_image={"bytes": b"", "path": None}))
    with pytest.raises(UserError, match="id 12: field `query_image`: is null, not an image"):
        read(path, tmp_path)


def test_numbers_as_ids(tmp_path: Path) -> None:
    (question,) = read(write(tmp_path / "end2end.parquet", row(sample_id=12)), tmp_path)
    assert question.id == "12"


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"query": ""}, "field `query`: is empty"),
        ({"gt_answer": 5}, r"field `gt_answer`: is 5 \(int\); it should be text"),
        ({"alternative_gt_answers": [5]}, "field `alternative_gt_answers`"),
        ({"query_image": {"bytes": b"no picture", "path": None}}, "field `query_image`: 10 bytes are not an image"),
    ],
)
def test_a_bad_row_is_named(tmp_path: Path, change: dict[str, object], problem: str) -> None:
    path = write(tmp_path / "end2end.parquet", row(**change))
    with pytest.raises(UserError, match=f"end2end.parquet:1: id 12: {problem}"):
        read(path, tmp_path)


def test_a_file_without_the_column_of_pictures_is_refused(tmp_path: Path) -> None:
    rest = row()
    del rest["query_image"]
    with pytest.raises(UserError, match="field `query_image`"):
        read(write(tmp_path / "end2end.parquet", rest), tmp_path)


def test_a_truncated_file_and_roles_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "end2end.parquet", row())
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(UserError, match=r"end2end.parquet"):
        read(path, tmp_path)
    with pytest.raises(UserError, match="not from the roles end2end"):
        list(questions({"end2end": path}, split="end2end", images=ImageFolder()))

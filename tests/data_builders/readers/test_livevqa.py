from functools import partial
from pathlib import Path

import pytest

from reflectune.core.errors import UserError
from reflectune.core.rejected import BadRow
from reflectune.core.types import Question

from .conftest import array, draw, read_set

PREVIEW = {"sample_id": "3_1", "query": "Who founded it?", "query_image": "/image/a.jpg", "gt_answer": "Ann Lee"}
DETAIL = {**PREVIEW, "topic": "A gallery opens", "context": "A long article."}
LEVEL1 = {
    "question": "Based on the provided image, what event is taking place?",
    "question_type": "event",
    "options": ["A. A party convention", "B. A debate"],
    "Ground_Truth": "B",
    "Ground_Truth_List": ["A debate", "the debate"],
    "img_path": "cnn_1.jpg",
    "img_url": "https://e.org/1.jpg",
}
LEVEL2 = {**LEVEL1, "question": "How many jobs?", "question_type": "count", "Ground_Truth_List": ["109,000"]}
BENCHMARK = {
    "id": "0_20250507132827113360",
    "img_path": "cnn_1.jpg",
    "level1_qa": LEVEL1,
    "level2_qa": LEVEL2,
    "source": "CNN World",
    "time": "2024-10-02T01:38:01.679Z",
}


@pytest.fixture
def images(tmp_path: Path) -> Path:
    return draw(tmp_path / "images", "image/a.jpg", "cnn_1.jpg", "2505.00049/x2.jpg")


read = partial(read_set, "livevqa", split="test")


def test_the_preview_joins_questions_and_details_by_sample(tmp_path: Path, images: Path) -> None:
    path = array(tmp_path / "qa.json", PREVIEW, {**PREVIEW, "sample_id": 4, "query_image": "image/a.jpg"})
    details = array(tmp_path / "qa_detailed.json", DETAIL)
    expected = Question("3_1", "image/a.jpg", "Who founded it?", ("Ann Lee",), split="test", requires_retrieval=True)
    first, second = read(path, images)
    assert first == expected
    assert (second.id, second.image) == ("4", "image/a.jpg")
    (first, _) = read({"questions": path, "details": details}, images)
    assert first.meta == {"topic": "A gallery opens"}
    (first, _) = read(path, images / "image")
    assert first.image == "a.jpg"


def test_a_benchmark_gives_two_questions_a_row_whose_answers_are_texts_and_not_letters(tmp_path, images) -> None:
    name = "0_20250507132827113360"
    meta = {"source": "CNN World", "time": "2024-10-02T01:38:01.679Z"}
    assert read(array(tmp_path / "benchmark.json", BENCHMARK), images) == [
        Question(f"{name}_level{level}", "cnn_1.jpg", text, answers, None, "string", "test", True, meta=own | meta)
        for level, text, answers, own in (
            (1, LEVEL1["question"], ("A debate", "the debate"), {"level": "1", "question_type": "event"}),
            (2, "How many jobs?", ("109,000",), {"level": "2", "question_type": "count"}),
        )
    ]


def test_the_papers_have_no_type_and_the_videos_no_time(tmp_path: Path, images: Path) -> None:
    bare = {key: value for key, value in LEVEL1.items() if key not in ("question_type", "img_url")}
    row = {**BENCHMARK, "img_path": "2505.00049/x2.jpg", "level1_qa": bare, "source": "arXiv"}
    del row["time"]
    question = read(array(tmp_path / "benchmark.json", row), images)[0]
    assert (question.image, question.meta) == ("2505.00049/x2.jpg", {"level": "1", "source": "arXiv"})


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ({**PREVIEW, "query": None}, "id 3_1: field `query`: is null"),
        ({**PREVIEW, "gt_answer": 5}, r"id 3_1: field `gt_answer`: is 5 \(int\)"),
        ({**PREVIEW, "query_image": "/image/b.jpg"}, "id 3_1: field `query_image`: no image of `b.jpg`"),
        ({**BENCHMARK, "img_path": "cnn_2.jpg"}, "field `img_path`: no image of `cnn_2.jpg`"),
        ({**BENCHMARK, "level2_qa": None}, "field `level2_qa`: is null"),
        ({**BENCHMARK, "level1_qa": {**LEVEL1, "Ground_Truth_List": []}}, "field `Ground_Truth_List`: is empty"),
    ],
)
def test_a_bad_row_is_named_and_may_be_left_out(tmp_path, images, row, problem) -> None:
    path = array(tmp_path / "qa.json", row, PREVIEW)
    with pytest.raises(UserError, match=f"qa.json:1: .*{problem}"):
        read(path, images)
    bad: list[BadRow] = []
    assert [question.id for question in read(path, images, reject=bad.append)] == ["3_1"]
    assert len(bad) == 1

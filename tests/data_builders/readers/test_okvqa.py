import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from reflectune.core.errors import UserError
from reflectune.core.rejected import BadRow
from reflectune.core.types import Question
from reflectune.metrics.official.vqa import soft_accuracy

from .conftest import draw, read_set

GIVEN = [("motocross", "motocross")] * 2 + [("ride", "riding")] * 2 + [("race", "racing")] * 6
ANSWERS = ("race",) * 6 + ("motocross",) * 2 + ("ride",) * 2
QUESTIONS = {
    "info": {"description": "OK-VQA", "version": "1.0"},
    "task_type": "Open-Ended",
    "data_type": "mscoco",
    "license": {"name": "CC BY 4.0"},
    "data_subtype": "val2014",
    "questions": [
        {"image_id": 297147, "question": "What sport can you use this for?", "question_id": 2971475},
        {"image_id": 339761, "question": "What is it called?", "question_id": 3397615},
    ],
}


def annotation(question_id: int, image_id: int, given: list[tuple[str, str]]) -> dict[str, Any]:
    answers = [
        {"answer_id": number, "raw_answer": raw, "answer_confidence": "yes", "answer": answer}
        for number, (answer, raw) in enumerate(given, 1)
    ]
    kinds = {"answer_type": "other", "question_type": "four", "confidence": 3}
    return {"image_id": image_id, "question_id": question_id, "answers": answers, **kinds}


ANNOTATIONS = {
    "info": {"description": "OK-VQA", "version": "1.0"},
    "license": {"name": "CC BY 4.0"},
    "data_subtype": "val2014",
    "annotations": [
        annotation(3397615, 339761, [("cat", "cats")] * 10),  # in another order than the questions
        annotation(2971475, 297147, GIVEN),
    ],
    "question_types": {"four": "Sports and Recreation", "other": "Other"},
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return draw(tmp_path, *(f"val2014/COCO_val2014_000000{number}.jpg" for number in (297147, 339761)))


def write(folder: Path, question_json: object = QUESTIONS, given: object = ANNOTATIONS) -> dict[str, Path]:
    (folder / "q.json").write_text(json.dumps(question_json))
    (folder / "a.json").write_text(json.dumps(given))
    return {"questions": folder / "q.json", "annotations": folder / "a.json"}


read = partial(read_set, "okvqa", split="val")


def test_all_ten_answers_with_the_most_frequent_first(folder: Path) -> None:
    first, second = read(write(folder), folder)
    assert first == Question(
        *("2971475", "val2014/COCO_val2014_000000297147.jpg", "What sport can you use this for?", ANSWERS),
        *(None, "string", "val", True),
        meta={"question_type": "Sports and Recreation", "answer_type": "other"},
    )
    assert (second.id, second.answers) == ("3397615", ("cat",) * 10)
    assert soft_accuracy("ride", first.answers) == pytest.approx(0.6)


def test_raw_answers_are_read_on_request(folder: Path) -> None:
    first, _ = read(write(folder), folder, raw_answers=True)
    assert first.answers == ("racing",) * 6 + ("motocross",) * 2 + ("riding",) * 2


@pytest.mark.parametrize(
    ("question_changes", "given", "problem"),
    [
        ({"question": None}, {}, "q.json:1: id 2971475: field `question`: is null"),
        ({"image_id": 1}, {}, "q.json:1: id 2971475: field `image_id`: no image of `COCO_val2014_000000000001`"),
        ({"question_id": 5}, {}, "q.json:1: id 5: field `question_id`: has no annotation"),
        ({}, {"answers": []}, "a.json:2: id 2971475: field `answers`: is empty"),
        ({}, {"answers": [{"answer": 3}]}, "a.json:2: id 2971475: field `answer`: is 3"),
    ],
)
def test_a_bad_row_is_named_once(folder: Path, question_changes: Any, given: Any, problem: str) -> None:
    first, second = QUESTIONS["questions"]
    other, second_annotation = ANNOTATIONS["annotations"]
    source = write(
        folder,
        {**QUESTIONS, "questions": [{**first, **question_changes}, second]},
        {**ANNOTATIONS, "annotations": [other, {**second_annotation, **given}]},
    )
    noted: list[BadRow] = []
    assert [q.id for q in read(source, folder, reject=noted.append)] == ["3397615"]
    assert len(noted) == 1
    assert problem in str(noted[0])


def test_two_annotations_of_one_question_are_refused(folder: Path) -> None:
    twice = {**ANNOTATIONS, "annotations": [*ANNOTATIONS["annotations"], ANNOTATIONS["annotations"][0]]}
    with pytest.raises(UserError, match=r"a\.json:3: id 3397615: field `question_id`: has two annotations"):
        read(write(folder, given=twice), folder)


def test_a_file_that_is_cut_off_is_named(folder: Path) -> None:
    source = write(folder)
    for path in source.values():
        whole = path.read_text()
        path.write_text(whole[: len(whole) - 60])
        with pytest.raises(UserError, match=path.name):
            read(source, folder)
        path.write_text(whole)


def test_missing_and_unknown_roles_are_refused(folder: Path) -> None:
    source = write(folder)
    for wrong in ({"questions": source["questions"]}, {**source, "images": folder}, source["questions"]):
        with pytest.raises(UserError, match="from the roles questions and annotations"):
            read(wrong, folder)
    with pytest.raises(UserError, match="no `data_subtype`"):
        read(write(folder, {"questions": QUESTIONS["questions"]}), folder)

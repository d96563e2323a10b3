"""ECCV26-ARA's files, by rows of its own layout."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from PIL import Image

from reflectune.core.errors import UserError
from reflectune.core.types import Evidence, Question
from reflectune.data_builders.readers.ara import questions
from reflectune.data_builders.readers.images import ImageFolder

WIKI = "https://en.wikipedia.org/wiki/"
EVQA = {
    "data_id": "E-VQA_12",
    "wikipedia_url": WIKI + "Scupi",
    "question_type": "templated",
    "dataset_image_ids": "0a1b2c3d",
    "question_before_review": "When were the first digs?",
    "question": "In what year were the first digs?",
    "answer": "1925 | in 1925",
    "evidence_section_id": "2",
    "dataset_name": "landmarks",
}
BIRD = {**EVQA, "data_id": "E-VQA_13", "dataset_name": "inaturalist", "dataset_image_ids": "77|78"}
LIST = {**EVQA, "data_id": "E-VQA_14", "question_type": "multi_answer", "answer": "a&&b|b&&a"}
INFOSEEK = {
    "data_id": "infoseek_val_00013723",
    "wikipedia_url": WIKI + "Calais",
    "question_original": "How high is it?",
    "dataset_image_ids": "oven_04955907",
    "question": "What is its height?",
    "answer": "170–200 cm",
    "evidence_section_id": "0|1",
    "question_type": "Numerical",
}
PAIR = {
    "anchor_data_id": "infoseek_val_00048894",
    "anchor_wikipedia_url": WIKI + "Magnum",
    "anchor_question": "What is the brand of this vehicle?",
    "anchor_answer": "Dodge",
    "anchor_question_type": "String",
    "anchor_image_path": "images/infoseek/val/oven_1.jpg",
    "method1_pair_wikipedia_url": WIKI + "Juke",
    "method1_query": "What is the brand of the vehicle on the left?",
    "method1_expected_answer": "Dodge",
    "method1_composite_image_path": "images/augmented/infoseek/method1/0000.jpg",
    "method1_image_status": "saved",
    "method2_pair_wikipedia_url": WIKI + "Cathedral",
    "method2_query": "What is the brand of the vehicle on the left?",
    "method2_expected_answer": "Dodge",
    "method2_composite_image_path": "images/augmented/infoseek/method2/0000.jpg",
    "method2_image_status": "saved",
}


def write(path: Path, *rows: Mapping[str, str]) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def draw(root: Path, paths: Sequence[str]) -> ImageFolder:
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8)).save(root / path)
    return ImageFolder(root)


def read(path: Path, images: ImageFolder | None = None) -> list[Question]:
    return [question for question, _ in questions(path, split="test", images=images or ImageFolder())]


def test_repaired_questions_of_evqa_keep_their_row_and_type(tmp_path: Path) -> None:
    images = draw(tmp_path / "images", ["landmarks/0/a/1/0a1b2c3d.jpg", "inaturalist/val/bird.jpg"])
    (tmp_path / "val.json").write_text(json.dumps({"images": [{"id": 77, "file_name": "val/bird.jpg"}]}))
    path = write(tmp_path / "evqa_fixed.csv", EVQA, BIRD, LIST)
    source = {"questions": path, "inaturalist": tmp_path / "val.json"}
    tall, bird, several = (question for question, _ in questions(source, split="test", images=images))
    assert tall == Question(
        id="E-VQA_12",
        image="landmarks/0/a/1/0a1b2c3d.jpg",
        text="In what year were the first digs?",
        answers=("1925", "in 1925"),
        split="test",
        requires_retrieval=True,
        entity_ids=(WIKI + "Scupi",),
        evidence=(Evidence(WIKI + "Scupi", 2),),
        meta={
            "row": "12",
            "question_type": "templated",
            "dataset_name": "landmarks",
            "question_before": "When were the first digs?",
        },
    )
    assert bird.image == "inaturalist/val/bird.jpg"
    assert (several.answer_type, several.answers) == ("multi_answer", ("a&&b", "b&&a"))


def test_repaired_questions_of_infoseek_have_a_range_that_their_answer_states(tmp_path: Path) -> None:
    images = draw(tmp_path / "oven", ["04/oven_04955907.JPEG"])
    wordless = {**INFOSEEK, "answer": "very high"}
    height, words = read(write(tmp_path / "infoseek_fixed.csv", INFOSEEK, wordless), images)
    assert (height.answer_type, height.answers, height.range) == ("numerical", ("170–200 cm",), (170.0, 200.0))
    assert (height.image, height.evidence) == ("04/oven_04955907.JPEG", ())
    assert height.meta == {"question_before": "How high is it?"}
    assert (words.answer_type, words.range) == ("string", None)


def test_a_row_of_two_entities_is_asked_in_three_settings(tmp_path: Path) -> None:
    paths = [PAIR["anchor_image_path"], *(PAIR[f"method{n}_composite_image_path"] for n in (1, 2))]
    alone, intra, inter = read(write(tmp_path / "queries.csv", PAIR), draw(tmp_path, paths))
    key = PAIR["anchor_data_id"]
    assert [question.id for question in (alone, intra, inter)] == [
        f"{key}__{s}" for s in ("anchor", "method1", "method2")
    ]
    assert [question.image for question in (alone, intra, inter)] == paths
    assert [question.split for question in (alone, intra, inter)] == [
        "test_one_entity",
        "test_intra_category",
        "test_inter_category",
    ]
    assert alone.text == PAIR["anchor_question"]
    assert intra.text == PAIR["method1_query"]
    assert alone.meta == {"setting": "one_entity", "anchor": key}
    assert inter.meta == {"setting": "inter_category", "anchor": key, "distractor": WIKI + "Cathedral"}
    assert {question.entity_ids for question in (alone, intra, inter)} == {(WIKI + "Magnum",)}
    assert {question.answers for question in (alone, intra, inter)} == {("Dodge",)}


def test_what_is_wrong_is_named(tmp_path: Path) -> None:
    unsaved = {**PAIR, "method2_image_status": "missing_pair"}
    with pytest.raises(UserError, match="method2_image_status"):
        read(write(tmp_path / "a.csv", unsaved))
    with pytest.raises(UserError, match="question_type"):
        read(write(tmp_path / "b.csv", {**EVQA, "question_type": "other"}))
    with pytest.raises(UserError, match="roles are questions, inaturalist"):
        list(questions({"annotations": tmp_path}, split="test", images=ImageFolder()))
    with pytest.raises(UserError, match="names images of iNaturalist"):
        read(write(tmp_path / "c.csv", BIRD), ImageFolder(tmp_path))

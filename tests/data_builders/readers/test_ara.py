"""ECCV26-ARA's files, by rows of its own layout."""

import json
from functools import partial
from pathlib import Path

import pytest

from reflectune.core.errors import UserError
from reflectune.core.types import Evidence, Question

from .conftest import csv_file, draw, read_set

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


read = partial(read_set, "ara", split="test")


def test_repaired_questions_of_evqa_keep_their_row_and_type(tmp_path: Path) -> None:
    images = draw(tmp_path / "images", "landmarks/0/a/1/0a1b2c3d.jpg", "inaturalist/val/bird.jpg")
    (tmp_path / "val.json").write_text(json.dumps({"images": [{"id": 77, "file_name": "val/bird.jpg"}]}))
    path = csv_file(tmp_path / "evqa_fixed.csv", EVQA, BIRD, LIST)
    source = {"questions": path, "inaturalist": tmp_path / "val.json"}
    tall, bird, several = read(source, images)
    meta = {"row": "12", "question_type": "templated", "dataset_name": "landmarks"}
    assert tall == Question(
        *("E-VQA_12", "landmarks/0/a/1/0a1b2c3d.jpg", "In what year were the first digs?", ("1925", "in 1925"), None),
        *("string", "test", True, (WIKI + "Scupi",), (Evidence(WIKI + "Scupi", 2),)),
        meta | {"question_before": "When were the first digs?"},
    )
    assert bird.image == "inaturalist/val/bird.jpg"
    assert (several.answer_type, several.answers) == ("multi_answer", ("a&&b", "b&&a"))


def test_repaired_questions_of_infoseek_have_a_range_that_their_answer_states(tmp_path: Path) -> None:
    images = draw(tmp_path / "oven", "04/oven_04955907.JPEG")
    wordless = {**INFOSEEK, "answer": "very high"}
    height, words = read(csv_file(tmp_path / "infoseek_fixed.csv", INFOSEEK, wordless), images)
    assert (height.answer_type, height.answers, height.range) == ("numerical", ("170–200 cm",), (170.0, 200.0))
    assert (height.image, height.evidence) == ("04/oven_04955907.JPEG", ())
    assert height.meta == {"question_before": "How high is it?"}
    assert (words.answer_type, words.range) == ("string", None)


def test_a_row_of_two_entities_is_asked_in_three_settings(tmp_path: Path) -> None:
    paths = [PAIR["anchor_image_path"], *(PAIR[f"method{n}_composite_image_path"] for n in (1, 2))]
    alone, intra, inter = read(csv_file(tmp_path / "queries.csv", PAIR), draw(tmp_path, *paths))
    key = PAIR["anchor_data_id"]
    assert [(question.id, question.image, question.split) for question in (alone, intra, inter)] == [
        (f"{key}__anchor", paths[0], "test_one_entity"),
        (f"{key}__method1", paths[1], "test_intra_category"),
        (f"{key}__method2", paths[2], "test_inter_category"),
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
        read(csv_file(tmp_path / "a.csv", unsaved))
    with pytest.raises(UserError, match="question_type"):
        read(csv_file(tmp_path / "b.csv", {**EVQA, "question_type": "other"}))
    with pytest.raises(UserError, match="roles are questions, inaturalist"):
        read({"annotations": tmp_path})
    with pytest.raises(UserError, match="names images of iNaturalist"):
        read(csv_file(tmp_path / "c.csv", BIRD), tmp_path)

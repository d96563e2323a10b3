from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from reflectune.core.errors import UserError
from reflectune.core.rejected import BadRow
from reflectune.core.types import Evidence, Question
from reflectune.data_builders.readers.registry import knowledge_reader
from reflectune.metrics.official.vqa import soft_accuracy

from .conftest import draw, parquet, read_set

ASK = "Using the provided image, obtain documents that address the subsequent question: "
TEXTS, NUMBERS = pa.list_(pa.string()), pa.list_(pa.float64())
INFOSEEK = pa.schema(
    [
        ("question_id", pa.string()), ("image_id", pa.string()), ("question", pa.string()), ("answers", TEXTS),
        ("answer_eval", TEXTS), ("data_split", pa.string()), ("wikidata_value", pa.float64()),
        ("wikidata_range", NUMBERS), ("entity_id", pa.string()), ("entity_text", pa.string()),
        ("image_path", pa.string()), ("gold_answer", pa.string()),
        ("objects", pa.list_(pa.struct([
            ("attribute_scores", NUMBERS), ("attributes", TEXTS), ("class", pa.string()),
            ("ocr", pa.list_(pa.null())), ("rect", NUMBERS),
        ]))),
        ("related_item_ids", TEXTS), ("pos_item_ids", TEXTS), ("pos_item_contents", TEXTS),
        ("ROIs", pa.list_(pa.null())), ("found", pa.bool_()), ("img_caption", pa.string()),
        ("instruction", pa.string()), ("img_path", pa.string()), ("question_type", pa.string()),
    ]
)  # fmt: skip
NUMERICAL: dict[str, Any] = {
    "question_id": "infoseek_val_00000001", "image_id": "oven_01963180", "question": "How long is this bird in cm?",
    "answers": ["145.0"], "answer_eval": ["145.0"], "data_split": "infoseek_val_unseen_entity",
    "wikidata_value": 145.0, "wikidata_range": [130.5, 159.5], "entity_id": "Q148", "entity_text": "a bird",
    "image_path": "/data/oven/01/oven_01963180.JPEG", "gold_answer": "145.0",
    "objects": [{"attribute_scores": [0.5], "attributes": ["red"], "class": "bird", "ocr": [], "rect": [0, 0, 1, 1]}],
    "related_item_ids": ["WikiWeb_bird_1"], "pos_item_ids": ["WikiWeb_bird_1", "WikiWeb_bird_4"],
    "pos_item_contents": ["It is 145 cm long.", "145 cm."], "ROIs": [], "found": True, "img_caption": "a bird",
    "instruction": ASK, "img_path": "oven_01963180.JPEG", "question_type": "Numerical",
}  # fmt: skip
STRING = {
    **NUMERICAL, "question_id": "infoseek_val_00000002", "question": "Where does it live?", "gold_answer": "China",
    "answers": ["CN", "China"], "answer_eval": ["CN", "China", "PRC"], "wikidata_value": None, "wikidata_range": None,
    "data_split": "infoseek_val_unseen_question", "question_type": "String",
}  # fmt: skip
EVQA = pa.schema(
    [
        ("pos_item_ids", TEXTS), ("pos_item_contents", TEXTS), ("img_id", pa.string()), ("img_path", pa.string()),
        ("image_id", pa.string()), ("question_id", pa.string()), ("question", pa.string()), ("answers", TEXTS),
        ("gold_answer", pa.string()), ("question_type", pa.string()), ("instruction", pa.string()),
    ]
)  # fmt: skip
TOWER = {
    "pos_item_ids": ["WikiWeb_Tower_0"], "pos_item_contents": ["It is 56 m tall."], "img_id": "0a1b",
    "img_path": "google-landmark/train/0/a/1/0a1b.jpg", "image_id": "0a1b", "question_id": "EVQA_7",
    "question": "How tall is it?", "answers": ["56 m", "56"], "gold_answer": "56 m", "question_type": "templated",
    "instruction": ASK,
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    draw(tmp_path / "images", "01/oven_01963180.JPEG", "google-landmark/train/0/a/1/0a1b.jpg")
    return tmp_path


def read(path: Path, folder: Path, **options: object) -> list[Question]:
    return read_set("m2kr", path, folder / "images", split="test", **options)


def test_infoseek_with_ranges_rebuilt(folder: Path) -> None:
    path = parquet(folder / "test-00000-of-00001.parquet", NUMERICAL, STRING, schema=INFOSEEK)
    meta = {"entity_id": "Q148", "entity_text": "a bird", "image_id": "oven_01963180", "instruction": ASK[:-1]}
    passages = ("WikiWeb_bird_1", "WikiWeb_bird_4")
    evidence = tuple(Evidence(passage, 0) for passage in passages)
    assert read(path, folder) == [
        Question(
            "infoseek_val_00000001", "01/oven_01963180.JPEG", "How long is this bird in cm?", ("145.0",),
            (130.5, 159.5), "numerical", "test_unseen_entity", True, passages, evidence,
            {**meta, "question_type": "Numerical"},
        ),
        Question(
            "infoseek_val_00000002", "01/oven_01963180.JPEG", "Where does it live?", ("China", "CN", "PRC"), None,
            "string", "test_unseen_question", True, passages, evidence, {**meta, "question_type": "String"},
        ),
    ]  # fmt: skip


def test_gold_entries_may_be_those_of_a_knowledge_base_with_images(folder: Path) -> None:
    path = parquet(folder / "test-00000-of-00001.parquet", NUMERICAL, schema=INFOSEEK)
    (question,) = read(path, folder, gold="wikidata")
    assert (question.entity_ids, question.evidence) == (("Q148",), ())
    with pytest.raises(UserError, match="`gold` is 'images'; it is passages or wikidata"):
        read(path, folder, gold="images")
    with pytest.raises(UserError, match="`entity_id`: is missing"):
        read(parquet(folder / "evqa.parquet", TOWER, schema=EVQA), folder, gold="wikidata")


def test_evqa_in_a_folder_and_its_passages(folder: Path) -> None:
    (folder / "EVQA_data").mkdir()
    parquet(folder / "EVQA_data" / "test-00000-of-00001.parquet", TOWER, schema=EVQA)
    (question,) = read(folder / "EVQA_data", folder)
    assert question == Question(
        "EVQA_7", "google-landmark/train/0/a/1/0a1b.jpg", "How tall is it?", ("56 m", "56"), None, "string", "test",
        True, ("WikiWeb_Tower_0",), (Evidence("WikiWeb_Tower_0", 0),),
        {"question_type": "templated", "image_id": "0a1b", "instruction": ASK[:-1]},
    )  # fmt: skip
    passage = {"language": "en", "passage_id": "WikiWeb_Tower_0", "passage_content": "title: Tower content: 56 m."}
    (entry,) = knowledge_reader("m2kr").entries(parquet(folder / "passages.parquet", passage))
    assert entry.id == question.entity_ids[0]
    assert entry.sections[question.evidence[0].section].text == "56 m."


def test_okvqas_annotators_are_all_counted(folder: Path) -> None:
    answers = ["ride"] * 2 + ["race"] * 5 + ["motocross"] * 3
    row = {**TOWER, "question_id": "2971475", "answers": answers, "gold_answer": "race", "question_type": None}
    (question,) = read(parquet(folder / "a.parquet", row, schema=EVQA), folder)
    assert question.answers == ("race",) * 5 + ("ride",) * 2 + ("motocross",) * 3
    scores = [soft_accuracy(answer, question.answers) for answer in ("race", "motocross", "ride")]
    assert scores == pytest.approx([1.0, 0.9, 0.6])


@pytest.mark.parametrize("empty", [None, [], [float("nan"), float("nan")], [None, None]])
def test_no_range_no_number(folder: Path, empty: object) -> None:
    unsaid = {**STRING, "wikidata_range": empty, "question_type": None, "gold_answer": "1888"}
    (question,) = read(parquet(folder / "a.parquet", unsaid, schema=INFOSEEK), folder)
    assert (question.answer_type, question.range) == ("time", None)
    (question,) = read(parquet(folder / "a.parquet", {**NUMERICAL, "question_type": None}, schema=INFOSEEK), folder)
    assert (question.answer_type, question.range) == ("numerical", (130.5, 159.5))


def test_a_set_that_asks_by_its_instruction_without_an_image(folder: Path) -> None:
    row = {**TOWER, "question": None, "img_path": None, "answers": None, "gold_answer": None, "question_type": None}
    (question,) = read(parquet(folder / "a.parquet", row, schema=EVQA), folder)
    assert (question.text, question.image, question.answers, question.answer_type) == (ASK[:-1], "", (), "string")


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"question": "", "instruction": None}, "field `instruction`: is null"),
        ({"wikidata_range": None}, "field `wikidata_range`: is missing, and the question is numerical"),
        ({"wikidata_range": [1.0]}, r"field `wikidata_range`: is \[1.0\]"),
        ({"img_path": "oven_1.jpg"}, "field `img_path`: no image of `oven_1`"),
    ],
)
def test_a_bad_row_is_named(folder: Path, change: dict[str, Any], problem: str) -> None:
    path = parquet(folder / "a.parquet", STRING, {**NUMERICAL, **change}, schema=INFOSEEK)
    with pytest.raises(UserError, match=f"a.parquet:2: id infoseek_val_00000001: {problem}"):
        read(path, folder)
    bad: list[BadRow] = []
    assert [q.id for q in read(path, folder, reject=bad.append)] == ["infoseek_val_00000002"]
    assert [error.line for error in bad] == [2]

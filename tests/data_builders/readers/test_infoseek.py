import gzip
import json
from pathlib import Path

import pytest

from reflectune.core.errors import UserError
from reflectune.core.types import Question
from reflectune.data_builders.readers.infoseek import derived_kind

from .conftest import draw, jsonl, read_set

CHINA = ["cn", "People's Republic of China", "China", "Mainland China", "\U0001f1e8\U0001f1f3"]
ROWS = [
    {"data_id": "infoseek_val_00000000", "image_id": "oven_01963180", "question": "Where is this animal endemic to?",
     "answer": ["People's Republic of China"], "answer_eval": CHINA, "data_split": "val_unseen_question"},
    {"data_id": "infoseek_val_00000001", "image_id": "oven_01963180", "question": "How long is it in metres?",
     "answer": ["1.0"], "answer_eval": [{"wikidata": 1.0, "range": [0.9, 1.1]}], "data_split": "val_unseen_entity"},
    {"data_id": "infoseek_val_00000002", "image_id": "oven_02000000", "question": "When was it described?",
     "answer": ["1870"], "answer_eval": ["1870", "1870-01-01"], "data_split": "val_unseen_entity"},
]  # fmt: skip
# The files with entities and types list the rows in another order.
WITHKB = [
    {"data_id": "infoseek_val_00000002", "entity_id": "Q33602", "entity_text": "giant panda"},
    {"data_id": "infoseek_val_00000000", "entity_id": "Q148", "entity_text": "golden snub-nosed monkey"},
    {"data_id": "infoseek_val_00000001", "entity_id": "Q148", "entity_text": "golden snub-nosed monkey"},
]
QTYPE = [
    {"data_id": "infoseek_val_00000002", "question_type": "Time"},
    {"data_id": "infoseek_val_00000001", "question_type": "Numerical"},
    {"data_id": "infoseek_val_00000000", "question_type": "String"},
]
MONKEY = {"entity_text": "golden snub-nosed monkey"}
EXPECTED = [
    Question(
        "infoseek_val_00000000", "01/oven_01963180.JPEG", "Where is this animal endemic to?",
        ("People's Republic of China", "cn", "China", "Mainland China", "\U0001f1e8\U0001f1f3"), None, "string",
        "val_unseen_question", True, ("Q148",), meta=MONKEY,
    ),
    Question(
        "infoseek_val_00000001", "01/oven_01963180.JPEG", "How long is it in metres?", ("1.0",), (0.9, 1.1),
        "numerical", "val_unseen_entity", True, ("Q148",), meta=MONKEY,
    ),
    Question(
        "infoseek_val_00000002", "02/oven_02000000.jpg", "When was it described?", ("1870", "1870-01-01"), None, "time",
        "val_unseen_entity", True, ("Q33602",), meta={"entity_text": "giant panda"},
    ),
]  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return draw(tmp_path, "oven_images/01/oven_01963180.JPEG", "oven_images/02/oven_02000000.jpg")


def roles(folder: Path, rows: list[dict[str, object]], withkb: object = WITHKB, qtype: object = QTYPE) -> dict:
    files = {"annotations": rows, "withkb": withkb, "qtype": qtype}
    return {role: jsonl(folder / f"{role}.jsonl", *lines) for role, lines in files.items() if lines}  # type: ignore


def read(source: object, folder: Path, **options: object) -> list[Question]:
    return read_set("infoseek", source, folder / "oven_images", split="val", **options)


def test_the_three_files_are_joined_by_id(folder: Path) -> None:
    assert read(roles(folder, ROWS), folder) == EXPECTED


def test_the_type_is_derived_without_a_qtype_file(folder: Path) -> None:
    assert read(roles(folder, ROWS, qtype=None), folder) == EXPECTED


def test_the_type_that_the_qtype_file_says_counts(folder: Path) -> None:
    said = [QTYPE[0] | {"question_type": "string"}, *QTYPE[1:]]
    assert [q.answer_type for q in read(roles(folder, ROWS, qtype=said), folder)] == ["string", "numerical", "string"]


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        ("1870", "time"), ("1870-05-03", "time"), ("-0044-03-15", "time"), ("1981 September 26", "time"),
        ("26 September 1981", "time"), ("May 1888", "time"), ("September 26, 1981", "time"), ("1980s", "time"),
        ("12th century", "time"), ("300 BC", "time"), ("26 metres", "string"), ("May", "string"), ("7", "string"),
        ("Boeing 747", "string"), ("People's Republic of China", "string"),
    ],
)  # fmt: skip
def test_dates_and_years_are_times(answer: str, kind: str) -> None:
    assert derived_kind(answer) == kind


def test_annotations_alone_packed_with_one_accepted_answer(folder: Path) -> None:
    path = folder / "infoseek_train.jsonl.gz"
    row = {**ROWS[0], "data_split": "train", "answer_eval": "China"}
    path.write_bytes(gzip.compress((json.dumps(row) + "\n").encode()))
    (question,) = read_set("infoseek", path)
    assert (question.split, question.entity_ids, question.image, dict(question.meta)) == ("train", (), "", {})
    assert question.answers == ("China",)


def test_rows_of_the_test_set_have_no_answers(folder: Path) -> None:
    row = {"data_id": "infoseek_test_0", "image_id": "oven_01963180", "question": "Where does it live?"}
    (question,) = read(jsonl(folder / "infoseek_test.jsonl", row), folder)
    assert question == Question(
        "infoseek_test_0", "01/oven_01963180.JPEG", "Where does it live?", split="val", requires_retrieval=True
    )


def test_a_range_alone_and_one_below_zero_stand_as_they_are(folder: Path) -> None:
    alone = {"answer": ["-430"], "answer_eval": {"wikidata": -430.0, "range": [-387.0, -473.0]}}
    unnamed = {"answer": None, "answer_eval": [{"wikidata": 2, "range": [1, 3]}]}
    path = jsonl(folder / "a.jsonl", {**ROWS[1], **alone}, {**ROWS[1], **unnamed})
    numerical = read(path, folder)
    assert [(q.answers, q.range, q.answer_type) for q in numerical] == [
        (("-430",), (-387.0, -473.0), "numerical"),
        (("2",), (1.0, 3.0), "numerical"),
    ]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"question": 5}, r"field `question`: is 5 \(int\)"),
        ({"answer_eval": ["China", 1]}, "field `answer_eval`"),
        ({"answer_eval": []}, "field `answer_eval`: is empty"),
        ({"answer_eval": None}, "field `answer_eval`: is null"),
        ({"answer_eval": [{"wikidata": 1.0}]}, "field `range`: is None"),
        ({"answer_eval": [{"wikidata": 1.0, "range": ["a", 2]}]}, "field `range`: is 'a'"),
        ({"answer_eval": [{"wikidata": 1.0, "range": [1, 2]}]}, "has a range, and the qtype file says string"),
        ({"image_id": "oven_09999999"}, "field `image_id`: no image of `oven_09999999` below"),
    ],
)
def test_a_bad_row_is_named(folder: Path, change: dict[str, object], problem: str) -> None:
    source = roles(folder, [ROWS[1], {**ROWS[0], **change}])
    with pytest.raises(UserError, match=f"annotations.jsonl:2: id infoseek_val_00000000: .*{problem}"):
        read(source, folder)


def test_a_row_that_another_file_lacks_is_named(folder: Path) -> None:
    with pytest.raises(UserError, match=r"annotations.jsonl:1: id infoseek_val_00000000: .* is not in the withkb file"):
        read(roles(folder, ROWS, withkb=WITHKB[:1]), folder)
    with pytest.raises(UserError, match=r"annotations.jsonl:1: id infoseek_val_00000000: .* is not in the qtype file"):
        read(roles(folder, ROWS, qtype=QTYPE[:1]), folder)


def test_a_bad_row_of_another_file_is_named(folder: Path) -> None:
    with pytest.raises(UserError, match=r"withkb.jsonl:4: id infoseek_val_00000000: field `entity_id`: is 'Q1', and"):
        read(roles(folder, ROWS, withkb=[*WITHKB, {**WITHKB[1], "entity_id": "Q1"}]), folder)
    with pytest.raises(UserError, match=r"qtype.jsonl:1: id x: field `question_type`: is 'Date'; it must be String"):
        read(roles(folder, ROWS, qtype=[{"data_id": "x", "question_type": "Date"}]), folder)


def test_roles_are_checked(folder: Path) -> None:
    for source in ({"withkb": folder}, {"annotations": folder, "kb": folder}):
        with pytest.raises(UserError, match=r"roles are annotations, withkb, qtype"):
            read(source, folder)

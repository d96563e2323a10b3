import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from reflectune.core.errors import UserError
from reflectune.core.types import Question
from reflectune.data_builders.readers.images import ImageFolder

from .conftest import csv_file, draw, encoded, jsonl, parquet, read_set

ROWS = [
    {"id": "a", "image": "images/1.png", "question": "How high?", "answers": ["56 m"], "range": [50, 62.5],
     "entity_ids": ["Q1"], "requires_retrieval": True, "split": "val"},
    {"id": "b", "image": "images/1.png", "question": "Which colours?", "answers": ["red && blue", "red && navy"]},
    {"id": "c", "image": "images/1.png", "question": "What is it?"},
]  # fmt: skip
EXPECTED = [
    Question("a", "images/1.png", "How high?", ("56 m",), (50.0, 62.5), "numerical", "val", True, ("Q1",)),
    Question("b", "images/1.png", "Which colours?", ("red && blue", "red && navy"), None, "multi_answer", "train"),
    Question("c", "images/1.png", "What is it?", split="train"),
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return draw(tmp_path, "images/1.png")


read = partial(read_set, "own")


def test_the_three_kinds_of_file_say_the_same(folder: Path) -> None:
    joined = [{k: "|".join(map(str, v)) if isinstance(v, list) else v for k, v in row.items()} for row in ROWS]
    assert read(jsonl(folder / "q.jsonl", *ROWS), folder) == EXPECTED
    assert read(parquet(folder / "q.parquet", *ROWS), folder) == EXPECTED
    assert read(csv_file(folder / "q.csv", *joined), folder) == EXPECTED


def test_a_list_of_images_is_a_question_with_several_images(folder: Path) -> None:
    draw(folder, "images/2.png", "images/3.png")
    names = ["images/3.png", "images/1.png", "images/2.png"]
    rows = [{**ROWS[2], "image": names}, {**ROWS[2], "id": "d", "image": names[:1]}]
    bytes_of = [{"bytes": (folder / name).read_bytes(), "path": None} for name in names]
    first, second = read(jsonl(folder / "q.jsonl", *rows), folder)
    assert (first.image, first.more_images) == (names[0], tuple(names[1:]))
    assert (second.image, second.images, second.more_images) == (names[0], (names[0],), ())
    (joined,) = read(csv_file(folder / "q.csv", {**ROWS[2], "image": "|".join(names)}), folder)
    assert joined == first
    (held,) = read(
        parquet(folder / "q.parquet", {**ROWS[2], "images": bytes_of}),
        ImageFolder(folder, folder / "saved"),
        columns={"image": "images"},
    )
    assert [(folder / path).read_bytes() for path in held.images] == [each["bytes"] for each in bytes_of]


def test_a_map_of_columns_and_further_columns(folder: Path) -> None:
    row = {"uid": 7, "file": "images/1.png", "q": "Who?", "gold": "Ann", "topic": "people", "hops": 2}
    path = jsonl(folder / "q.jsonl", row)
    columns = {"id": "uid", "image": "file", "question": "q", "answers": "gold"}
    (question,) = read(path, folder, columns=columns, meta=["topic", "hops"])
    assert question == Question(
        "7", "images/1.png", "Who?", ("Ann",), split="train", meta={"topic": "people", "hops": "2"}
    )


def test_a_mapped_column_that_is_not_there_is_never_passed_over(folder: Path) -> None:
    path = jsonl(folder / "q.jsonl", ROWS[0])
    with pytest.raises(UserError, match=r"has no column `gold` \(for answers\); it has id, image"):
        read(path, folder, columns={"answers": "gold"})
    with pytest.raises(UserError, match="has the keys answer; the fields are id, image"):
        read(path, folder, columns={"answer": "answers"})


def test_a_set_that_datasets_loads_with_images_as_bytes(folder: Path) -> None:
    row = {"id": "a", "image": {"bytes": encoded("red"), "path": None}, "question": "Who?", "answers": ["Ann"]}
    (folder / "set").mkdir()
    parquet(folder / "set" / "train.parquet", row)
    images = ImageFolder(folder / "out", folder / "out" / "images")
    (question,) = read({"load_dataset": str(folder / "set")}, images)
    assert (folder / "out" / question.image).read_bytes() == encoded("red")
    with pytest.raises(UserError, match="can't load"):
        read({"load_dataset": str(folder / "none")}, images)
    with pytest.raises(UserError, match="takes the keys"):
        read({"load_dataset": "x", "subset": "y"}, images)


@pytest.mark.parametrize("inside", [True, False], ids=["folder of images", "elsewhere"])
@pytest.mark.parametrize("form", ["file", "list", "archive"])
def test_a_folder_of_images_that_datasets_loads(tmp_path: Path, form: str, inside: bool) -> None:
    """`datasets` names files by absolute paths, and files in an archive by `zip://NAME::ARCHIVE`."""
    (folder := tmp_path / "set").mkdir()
    row = {"id": 1.0, "question": "Who?", "answers": ["Ann"]}
    if form == "list":
        (folder / "1.jpg").write_bytes(encoded("red"))
        jsonl(folder / "metadata.jsonl", {**row, "images_file_names": ["1.jpg"]})
    else:
        (folder / "train").mkdir()
        (folder / "train" / "1.jpg").write_bytes(encoded("red"))
        jsonl(folder / "train" / "metadata.jsonl", {**row, "file_name": "1.jpg"})
    if form == "archive":
        shutil.make_archive(str(folder / "train"), "zip", folder / "train")
        shutil.rmtree(folder / "train")
    images = ImageFolder(folder if inside else tmp_path / "out", tmp_path / "out")
    column = {"image": "images"} if form == "list" else None
    (question,) = read({"load_dataset": str(folder)}, images, columns=column)
    assert question.id == "1"
    assert (Path(images.root or "") / question.image).read_bytes() == encoded("red")


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"question": " "}, "field `question`: is empty"),
        ({"id": None}, "field `id`: is null"),
        ({"image": "images/2.png"}, "no image of `images/2.png`"),
        ({"image": ""}, "field `image`: is empty, not an image"),
        ({"image": ["images/1.png", ""]}, "field `image`: is empty, not an image"),
        ({"image": ["images/1.png", "images/2.png"]}, "field `image`: no image of `images/2.png`"),
        ({"image": []}, r"field `image`: is \[\] \(list\), not an image"),
        ({"image": {"path": "/etc/hosts"}}, r"`/etc/hosts` leads out of"),
        ({"id": 1.5}, r"field `id`: is 1.5 \(float\); it should be text"),
        ({"answers": {"text": "x"}}, "field `answers`"),
        ({"answers": "['Japan', 'Nippon']"}, r"is the text \['Japan', 'Nippon'\], a list that was written"),
        ({"answers": ['["Japan"]']}, "a list that was written as text; write its items with `|` between them"),
        ({"entity_ids": "[12, 13]"}, "field `entity_ids`: is the text"),
        ({"answers": [float("nan")]}, r"field `answers`: is \[nan\]"),
        ({"range": [3, 1]}, "begins at 3 and ends at 1"),
        ({"range": [3]}, "lowest and the highest"),
        ({"answer_type": "text"}, "field `answer_type`: is 'text'; it must be one of string, time"),
        ({"requires_retrieval": "perhaps"}, "true or false"),
    ],
)
def test_a_bad_row_is_named(folder: Path, change, problem) -> None:
    path = jsonl(folder / "q.jsonl", ROWS[2], {**ROWS[0], **change})
    with pytest.raises(UserError, match=f"q.jsonl:2: .*{problem}"):
        read(path, folder)


def test_an_unknown_kind_of_file_is_refused(folder: Path) -> None:
    (folder / "q.xlsx").write_bytes(b"x")
    with pytest.raises(UserError, match=r"read from .jsonl, .csv, .parquet"):
        read(folder / "q.xlsx", folder)


def test_an_answer_in_brackets_that_is_not_a_list_is_kept(folder: Path) -> None:
    answers = ["[sic]", "[Fe/H]", "the so-called [U]"]
    (question,) = read(jsonl(folder / "q.jsonl", {**ROWS[2], "answers": answers}), folder)
    assert question.answers == tuple(answers)


def test_a_whole_number_has_no_fraction_however_a_table_stores_it(folder: Path) -> None:
    """A column of whole numbers with a missing value is a column of floats."""
    table = {"id": [1.0, 2.0], "image": [["images/1.png"]] * 2, "year": [1999.0, None], "question": ["When?"] * 2}
    pq.write_table(pa.table({**table, "answers": [1990.0, 2.5], "entity_ids": [12.0, None]}), folder / "q.parquet")
    first, second = read(folder / "q.parquet", folder, meta=["year"])
    assert (first.id, first.image, first.meta) == ("1", "images/1.png", {"year": "1999"})
    assert (first.answers, first.entity_ids) == (("1990",), ("12",))
    assert (second.answers, second.entity_ids) == (("2.5",), ())


def test_a_file_s_ending_may_be_in_capitals(folder: Path) -> None:
    (folder / "Q.CSV").write_text("id,image,question,answers\na,images/1.png,Who?,Ann|Anna\n")
    (question,) = read(folder / "Q.CSV", folder)
    assert question.answers == ("Ann", "Anna")


def test_a_column_to_carry_along_that_no_row_has_is_an_error(folder: Path) -> None:
    path = jsonl(folder / "q.jsonl", {**ROWS[2], "topic": "art"}, {**ROWS[2], "id": "d"})
    assert [question.meta for question in read(path, folder, meta=["topic"])] == [{"topic": "art"}, {}]
    with pytest.raises(UserError, match=r"`meta` names `topik`, which no row of .*q.jsonl has"):
        read(path, folder, meta=["topic", "topik"])


@pytest.mark.parametrize(
    ("field", "called", "problem"),
    [
        ("image", "file_name", r"field `image`: is missing \(the row has id, file_name, question, answers\)"),
        ("answers", "answer", r"field `answers`: .* there is a column `answer`; .*`columns: \{answers: answer\}`"),
        ("question", "Question", "field `question`: .* there is a column `Question`"),
    ],
)
def test_a_misnamed_column_is_an_error(folder: Path, field, called, problem) -> None:
    row = {"id": "c", "image": "images/1.png", "question": "What is it?", "answers": ["56 m"]}
    path = jsonl(folder / "q.jsonl", {called if name == field else name: value for name, value in row.items()})
    with pytest.raises(UserError, match=f"q.jsonl:1: id c: {problem}"):
        read(path, folder)
    (question,) = read(path, folder, columns={field: called})
    assert question == Question("c", "images/1.png", "What is it?", ("56 m",), split="train")


def test_all_missing_columns_are_named_at_once(folder: Path) -> None:
    path = jsonl(folder / "q.jsonl", {"qid": "c", "photo": "images/1.png", "prompt": "What is it?"})
    with pytest.raises(UserError, match="`id`: is missing, as are `image`, `question`, and there is a column `qid`"):
        read(path, folder)


def test_a_column_of_meta_is_not_a_misspelt_field(folder: Path) -> None:
    path = jsonl(folder / "q.jsonl", {**ROWS[2], "answer": "56 m"})
    (question,) = read(path, folder, meta=["answer"])
    assert (question.answers, question.meta) == ((), {"answer": "56 m"})


def test_an_error_names_the_users_column(folder: Path) -> None:
    path = jsonl(folder / "q.jsonl", {"uid": "c", "image": "images/1.png", "prompt": ""})
    with pytest.raises(UserError, match=r"q.jsonl:1: id c: field `prompt`: is empty"):
        read(path, folder, columns={"id": "uid", "question": "prompt"})
    path = jsonl(folder / "q.jsonl", {"id": "c", "image_url": "https://e.org/1.png", "question": "Who?"})
    with pytest.raises(UserError, match=r"q.jsonl:1: id c: field `image_url`: holds a URL"):
        read(path, folder, columns={"image": "image_url"})


CAPTION = {"image": "images/1.png", "question": "Describe the image briefly.", "answer": "A tower."}
CAPTIONS: dict[str, Any] = {
    "columns": {"answers": "answer"},
    "constants": {"answer_type": "free_form", "requires_retrieval": False},
    "number_rows": True,
}


def test_captions_need_neither_ids_nor_columns_that_say_the_same_in_every_row(folder: Path) -> None:
    path = jsonl(folder / "captions.jsonl", CAPTION, {**CAPTION, "answer": "A gold tower."})
    first, second = read(path, folder, **CAPTIONS)
    assert [first.id, second.id] == ["train-captions-1", "train-captions-2"]
    assert (first.image, second.answers) == ("images/1.png", ("A gold tower.",))
    assert first.answer_type == second.answer_type == "free_form"
    assert first.requires_retrieval is second.requires_retrieval is False


@pytest.mark.parametrize(
    ("row", "options", "said"),
    [
        ({"id": "a"}, {}, "field `id`: is a column of the file, and `number_rows` gives it too; leave it out"),
        ({"answer_type": "string"}, {}, "field `answer_type`: is a column of the file, and `constants` gives it too"),
        ({}, {"constants": {"image": "1.png"}}, "`constants` has the keys image; it may have answers, range"),
        ({}, {"constants": {"answer_type": "essay"}}, "field `answer_type`"),
    ],
)
def test_a_constant_of_an_existing_column_is_refused(folder, row, options, said) -> None:
    path = jsonl(folder / "captions.jsonl", {**CAPTION, **row})
    with pytest.raises(UserError, match=said):
        read(path, folder, **{**CAPTIONS, **options})

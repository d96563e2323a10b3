from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from reflectune.core.durable import write_json
from reflectune.core.errors import UserError
from reflectune.core.hashing import file_fingerprint
from reflectune.core.types import Entry, Evidence, FollowUp, Question
from reflectune.formats.dataset import (
    Dataset,
    companion,
    splits,
    write_question_file,
    write_questions,
)
from reflectune.formats.knowledge_base import write_knowledge_base

QUESTIONS = [
    Question("a", "images/a.jpg", "How tall?", ("56 metres",), (50.4, 61.6), "numerical", "val", True, ("e1",),
             (Evidence("e1", 2),), {"relation": "height"}),
    Question("b", "images/b.jpg", "What colour is it? “ü”", ("red",), split="val", requires_retrieval=False),
    Question("c", "images/c.jpg", "Who?", requires_retrieval=None, split="val"),
    Question("d", "images/d.jpg", "What?", ("A bus.",), answer_type="free_form", split="val", requires_retrieval=False,
             follow_ups=(FollowUp("Is it “red”?", "Yes."), FollowUp("Why?", "It is painted."))),
]  # fmt: skip


def test_questions_survive_the_disk(tmp_path: Path) -> None:
    write_questions(tmp_path, "val", QUESTIONS)
    assert Dataset(tmp_path).questions("val") == QUESTIONS
    assert splits(tmp_path) == ["val"]


def test_a_file_without_a_column_is_refused(tmp_path: Path) -> None:
    path = write_questions(tmp_path, "val", QUESTIONS)
    pq.write_table(pq.read_table(path).drop_columns(["follow_ups"]), path)
    with pytest.raises(UserError, match="it has no column `follow_ups`; build the data set again"):
        Dataset(tmp_path).questions("val")


def test_further_images_start_at_the_same_folder(tmp_path: Path) -> None:
    several = Question("e", "a.jpg", "Which is older?", split="val", more_images=("c.jpg", "b.jpg"))
    write_questions(tmp_path, "val", [several])
    assert Dataset(tmp_path).questions("val") == [several]
    write_json(tmp_path / "dataset.json", {"fingerprint": "f", "image_root": "../images"})
    (question,) = Dataset(tmp_path).questions("val")
    assert question.images == ("../images/a.jpg", "../images/c.jpg", "../images/b.jpg")


def test_a_missing_split_names_those_that_exist(tmp_path: Path) -> None:
    write_questions(tmp_path, "val", QUESTIONS)
    with pytest.raises(UserError, match="has the splits val"):
        Dataset(tmp_path).questions("train")


@pytest.fixture
def in_parts(tmp_path: Path) -> Path:
    for number in range(2):
        write_question_file(tmp_path / "questions" / "val" / f"part-0000{number}.parquet", QUESTIONS[number::2])
    return tmp_path


def test_parts_are_read_in_order(in_parts: Path) -> None:
    assert Dataset(in_parts).questions("val") == QUESTIONS[::2] + QUESTIONS[1::2]
    assert splits(in_parts) == ["val"]


def test_parts_that_are_not_those_of_the_manifest_are_refused(in_parts: Path) -> None:
    def describe(*rows: int) -> None:
        parts = [{"file": f"part-0000{number}.parquet", "rows": count} for number, count in enumerate(rows)]
        write_json(in_parts / "dataset.json", {"fingerprint": "f", "parts": {"val": parts}})

    describe(2, 2)
    assert len(Dataset(in_parts).questions("val")) == 4
    describe(2, 5)
    with pytest.raises(UserError, match=r"part-00001.parquet holds 2 questions, dataset.json says 5"):
        Dataset(in_parts).questions("val")
    describe(2, 2, 1)
    with pytest.raises(UserError, match=r"a part of the data set is missing: .*part-00002"):
        Dataset(in_parts).questions("val")


@pytest.mark.parametrize(("root", "expected"), [("/data/set", "/data/set/images/a.jpg"), ("..", "../images/a.jpg")])
def test_images_start_at_the_manifests_root(in_parts: Path, root: str, expected: str) -> None:
    write_json(in_parts / "dataset.json", {"fingerprint": "f", "image_root": root})
    assert Dataset(in_parts).questions("val")[0].image == expected


def test_a_manifest_may_say_where_the_knowledge_base_is(tmp_path: Path) -> None:
    """`knowledge` holds a conversion's counts, not a path."""
    write_knowledge_base(tmp_path / "other", [Entry("a", "A")], name="kb")
    write_json(tmp_path / "data/dataset.json", {"fingerprint": "f", "knowledge": {"entries": 1}})
    assert Dataset(tmp_path / "data").knowledge_folder == tmp_path / "data/knowledge"
    write_json(tmp_path / "data/dataset.json", {"fingerprint": "f", "knowledge_root": "../other"})
    assert Dataset(tmp_path / "data").knowledge.get("a").title == "A"
    write_json(tmp_path / "data/dataset.json", {"fingerprint": "f", "knowledge_root": 3})
    with pytest.raises(UserError, match="`knowledge_root` is int, not str"):
        Dataset(tmp_path / "data").knowledge_folder.is_dir()


def damaged(tmp_path: Path, **change: Any) -> Path:
    """A data set of two questions, the second with other values, written without the writer's checks."""
    path = write_questions(tmp_path, "train", [Question(each, "a.jpg", "What is it?", split="train") for each in "ab"])
    table = pq.read_table(path)
    rows = table.to_pylist()
    rows[1] |= change
    pq.write_table(pa.Table.from_pylist(rows, schema=table.schema), path)
    return tmp_path


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"id": None}, r"the row None: `id`: input should be a valid string"),
        ({"id": " "}, r"the row  : `id` is empty"),
        ({"answer_type": "essay"}, r"the row b: `answer_type`: input should be 'string', 'time'"),
        ({"range": [float("nan"), 2.0]}, r"the row b: `range` is nan to 2.0"),
        ({"answers": None, "meta": None}, r"the row b: `answers`: input should be a valid tuple; `meta`: "),
        ({"id": "a"}, r"two questions of train have the id a; ids must be unique"),
    ],
)
def test_a_row_that_is_not_a_question_is_refused_whatever_wrote_it(tmp_path, change, problem) -> None:
    folder = damaged(tmp_path, **change)
    with pytest.raises(UserError, match=problem):
        Dataset(folder).questions("train")


def test_a_split_that_was_built_with_questions_and_has_none_is_refused(tmp_path: Path) -> None:
    write_questions(tmp_path, "val", QUESTIONS)
    write_json(tmp_path / "dataset.json", {"fingerprint": "f", "counts": {"val": {"string": 3, "numerical": 1}}})
    assert Dataset(tmp_path).questions("val") == QUESTIONS
    write_questions(tmp_path, "val", [])
    with pytest.raises(UserError, match=r"val.parquet holds 0 questions, dataset.json says 4"):
        Dataset(tmp_path).questions("val")
    write_json(tmp_path / "dataset.json", {"fingerprint": "f", "counts": {"val": {"string": "3"}}})
    with pytest.raises(UserError, match="`counts` of val are not numbers"):
        Dataset(tmp_path).questions("val")


def test_a_companion_file_has_the_hash_of_the_manifest(tmp_path: Path) -> None:
    path = tmp_path / "probes.jsonl"
    path.write_text("{}")
    manifest = {"files": {"probes.jsonl": file_fingerprint(path)}}
    assert companion(tmp_path, manifest, "probes.jsonl") == path
    assert companion(tmp_path, {}, "probes.jsonl") == path
    assert companion(tmp_path, manifest, "look_alikes.json") is None
    path.write_text("{ }")
    with pytest.raises(UserError, match=r"probes.jsonl is changed since the data set was built"):
        companion(tmp_path, manifest, "probes.jsonl")
    path.unlink()
    with pytest.raises(UserError, match=r"probes.jsonl is missing since the data set was built"):
        companion(tmp_path, manifest, "probes.jsonl")

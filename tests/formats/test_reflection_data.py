import dataclasses
import gc
import pickle
import tracemalloc
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from reflectune.core.errors import UserError
from reflectune.core.rows import schema_of, to_row
from reflectune.core.types import FollowUp, Passage
from reflectune.formats.reflection_data import (
    Manifest,
    StoredExamples,
    read_examples,
    read_manifest,
    stream_examples,
    write_examples,
    write_manifest,
)
from reflectune.models.schemes.examples import Branch, PromptedBranch, PromptedExample, ReflectionExample

PASSAGE = Passage("e1", 2, 1, "Gold Tower", "A gold tower.", "History", "It was founded in 1872.\n“Élan”")
KNOWLEDGE = ReflectionExample(
    id="q1",
    image="images/a.png",
    question="When was it founded?",
    retrieve=True,
    branches=(Branch(PASSAGE, True, "1872", "gold"), Branch(PASSAGE, False, "", "random")),
    source="train",
)
VISUAL = ReflectionExample("q2", "images/b.png", "Which colour?", retrieve=False, answer="red", style="list")


TALK = ReflectionExample(
    *("q3", "images/b.png", "What is it?", False, "A bus."),
    style="free",
    follow_ups=(FollowUp("Is it “red”?", "Yes."), FollowUp("Why?", "It is painted.")),
)


def test_examples_come_back_as_they_were_written(tmp_path: Path) -> None:
    write_examples(tmp_path / "train.parquet", [KNOWLEDGE, VISUAL, TALK])
    assert read_examples(tmp_path / "train.parquet", ReflectionExample) == [KNOWLEDGE, VISUAL, TALK]


def test_prompted_examples_come_back_as_they_were_written(tmp_path: Path) -> None:
    branches = (
        PromptedBranch("ret", role="retrieve"),
        PromptedBranch("mct", (PASSAGE, PASSAGE), reply="2, 1. It was founded in 1872."),
    )
    written = [PromptedExample("q1", "images/a.png", "When was it founded?", branches, "list", "train")]
    write_examples(tmp_path / "train.parquet", written)
    assert read_examples(tmp_path / "train.parquet", PromptedExample) == written


def test_stored_examples_are_made_on_demand_and_take_no_memory(tmp_path: Path) -> None:
    written = [
        dataclasses.replace(example, id=f"{example.id}-{i}") for i in range(400) for example in (KNOWLEDGE, TALK)
    ]
    write_examples(tmp_path / "train.parquet", written)
    tracemalloc.start()
    stored = StoredExamples(tmp_path / "train.parquet", ReflectionExample)
    assert list(stored) == [stored[i] for i in range(len(stored))] == written
    assert pickle.loads(pickle.dumps(stored))[-1] == written[-1]  # for a worker that is spawned

    gc.collect()
    before = tracemalloc.get_traced_memory()[0]
    dropped = list(stored)
    held = tracemalloc.get_traced_memory()[0] - before
    del dropped
    gc.collect()
    assert tracemalloc.get_traced_memory()[0] - before < held / 20
    tracemalloc.stop()


def test_a_missing_file_says_how_to_make_it(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"not found.*nowhere\.parquet.*a builder of reflectune\.data_builders"):
        read_examples(tmp_path / "nowhere.parquet", ReflectionExample)


def test_rows_of_other_types_are_listed_by_id_and_field(tmp_path: Path) -> None:
    rows = [to_row(KNOWLEDGE), {**to_row(VISUAL), "style": "long"}, {**to_row(TALK), "question": None}]
    pq.write_table(pa.Table.from_pylist(rows, schema_of(ReflectionExample)), tmp_path / "train.parquet")
    rejected: list[tuple[str, str]] = []
    with pytest.raises(
        UserError, match=r"2 bad rows.*\n  q2: `style`: .*'short', 'list' or 'free'\n  q3: `question`: "
    ):
        read_examples(tmp_path / "train.parquet", ReflectionExample)
    kept = list(stream_examples(tmp_path / "train.parquet", ReflectionExample, None, lambda *row: rejected.append(row)))
    assert kept == [KNOWLEDGE]
    assert [row for row, _ in rejected] == ["q2", "q3"]


def test_the_image_root_is_found_from_any_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "world").mkdir()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    write_manifest("reflection", Manifest("mr2ag", Path("world"), {"train": "8f3a"}))
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert read_manifest(tmp_path / "reflection") == Manifest("mr2ag", tmp_path / "world", {"train": "8f3a"})

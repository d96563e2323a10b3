import gzip
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from reflectune.core.errors import UserError
from reflectune.core.types import Question

from .conftest import draw, jsonl, parquet, read_set

ROW: dict[str, Any] = {
    "image": "512px-Jackie_Wilson.png",
    "input": "this singer's re-issued song helped to advertise what brand?",
    "kilt_id": "sfq_1024",
    "id": "a7ce2912c67127efd56ec3d9180059aa",
    "meta": {"left_context": "", "mention": "", "right_context": "", "partial_evidence": [], "obj_surface": []},
    "original_question": "Jackie Wilson's re-issued song helped to advertise what brand?",
    "output": {
        "answer": ["Levi", "Levi's", "Levis"],
        "original_answer": "Levi's",
        "provenance": [
            {"title": ["Reet Petite"], "wikipedia_id": ["1234"], "bleu_score": [1.0], "start_character": [0]},
            {"title": ["Levi Strauss & Co."], "wikipedia_id": ["99"], "bleu_score": [1.0], "start_character": [0]},
            {"title": ["Reet Petite"], "wikipedia_id": ["1234"], "bleu_score": [1.0], "start_character": [0]},
        ],
    },
    "url": "http://upload.wikimedia.org/wikipedia/commons/thumb/a/ae/Jackie_Wilson.png/512px-Jackie_Wilson.png",
    "wikidata_id": "Q435205",
}
OUTPUT = {"answer": ["Levi's"], "original_answer": "Levi's", "provenance": []}
EXPECTED = Question(
    *(ROW["id"], ROW["image"], ROW["input"], ("Levi's", "Levi", "Levis"), None, "string", "test", True, ("Q435205",)),
    meta={name: ROW[name] for name in ("kilt_id", "original_question")}
    | {"provenance": "Reet Petite|Levi Strauss & Co."},
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return draw(tmp_path, "512px-Jackie_Wilson.png")


read = partial(read_set, "viquae", split="test")


def test_jsonl_and_the_hubs_parquet_say_the_same(folder: Path) -> None:
    path = jsonl(folder / "test.jsonl", ROW)
    (folder / "test.jsonl.gz").write_bytes(gzip.compress(path.read_bytes()))
    (folder / "hub").mkdir()
    hub = parquet(folder / "hub" / "test-00000-of-00001.parquet", {**ROW, "meta": {"mention": ""}})
    for source in (path, folder / "test.jsonl.gz", folder / "hub", hub):
        assert read(source, folder) == [EXPECTED]


def test_an_answer_without_an_original_and_without_articles(folder: Path) -> None:
    output = {"answer": ["Levi", "Levi's"], "provenance": None}
    (question,) = read(jsonl(folder / "test.jsonl", {**ROW, "output": output}), folder)
    assert question.answers == ("Levi", "Levi's")
    assert "provenance" not in question.meta


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"input": ""}, "field `input`: is empty"),
        ({"output": [OUTPUT]}, "field `output`"),
        ({"output": {**OUTPUT, "answer": []}}, "field `answer`: is empty"),
        ({"output": {**OUTPUT, "provenance": "Reet Petite"}}, "field `provenance`"),
        ({"image": "512px-Other.png"}, "field `image`: no image of `512px-Other.png`"),
    ],
)
def test_a_bad_row_is_named(folder: Path, change: dict[str, object], problem: str) -> None:
    path = jsonl(folder / "test.jsonl", ROW, {**ROW, **change})
    with pytest.raises(UserError, match=f"test.jsonl:2: id a7ce2912c67127efd56ec3d9180059aa: {problem}"):
        read(path, folder)

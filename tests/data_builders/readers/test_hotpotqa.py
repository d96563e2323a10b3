from functools import partial
from pathlib import Path
from typing import Any

import pytest

from reflectune.core.errors import UserError
from reflectune.core.rejected import BadRow
from reflectune.core.types import Entry, Evidence, Question, Section
from reflectune.data_builders.readers.registry import knowledge_reader

from .conftest import array, parquet, read_set

entries = knowledge_reader("hotpotqa").entries
read = partial(read_set, "hotpotqa", split="dev")

WOOD = ["Ed Wood", ["Ed Wood is a film.", " It is by Tim Burton."]]
DERRICKSON = ["Scott Derrickson", ["Scott Derrickson is an American director."]]
ROWS: list[dict[str, Any]] = [
    {
        "_id": "5a8b57f25542995d1e6f1371",
        "answer": "yes",
        "question": "Were Scott Derrickson and Ed Wood of the same nationality?",
        "supporting_facts": [["Scott Derrickson", 0], ["Ed Wood", 0], ["Ed Wood", 7]],  # there is no sentence 7
        "context": [WOOD, DERRICKSON],
        "type": "comparison",
        "level": "hard",
    },
    {
        "_id": "5a8c7595554299585d9e36b6",
        "answer": "Chief of Protocol",
        "question": "What position did she hold?",
        "supporting_facts": [["Shirley Temple", 0]],
        "context": [DERRICKSON, ["Shirley Temple", []]],
        "type": "bridge",
        "level": "easy",
    },
]  # fmt: skip


def hub(row: dict[str, Any]) -> dict[str, Any]:
    facts, context = row["supporting_facts"], row["context"]
    return {
        **{name: row[name] for name in ("question", "answer", "type", "level")},
        "id": row["_id"],
        "supporting_facts": {"title": [title for title, _ in facts], "sent_id": [number for _, number in facts]},
        "context": {"title": [title for title, _ in context], "sentences": [items for _, items in context]},
    }


def test_questions_with_the_articles_that_support_them(tmp_path: Path) -> None:
    first, second = read(array(tmp_path / "dev.json", *ROWS))
    names = ("Scott Derrickson", "Ed Wood")
    assert first == Question(
        *("5a8b57f25542995d1e6f1371", "", "Were Scott Derrickson and Ed Wood of the same nationality?", ("yes",), None),
        *("string", "dev", True, names, tuple(Evidence(name, 0) for name in names)),
        {"type": "comparison", "level": "hard"},
    )
    assert (second.answers, second.entity_ids) == (("Chief of Protocol",), ("Shirley Temple",))


def test_each_article_is_an_entry_once(tmp_path: Path) -> None:
    wood = "Ed Wood is a film. It is by Tim Burton."
    director = "Scott Derrickson is an American director."
    assert list(entries(array(tmp_path / "dev.json", *ROWS))) == [
        Entry("Ed Wood", "Ed Wood", summary=wood, sections=(Section("Ed Wood", wood),)),
        Entry(DERRICKSON[0], DERRICKSON[0], summary=director, sections=(Section(DERRICKSON[0], director),)),
        Entry("Shirley Temple", "Shirley Temple", sections=(Section("Shirley Temple", ""),)),
    ]


def test_the_hub_says_the_same(tmp_path: Path) -> None:
    (tmp_path / "hub").mkdir()
    parquet(tmp_path / "hub" / "validation.parquet", *map(hub, ROWS))
    plain = array(tmp_path / "dev.json", *ROWS)
    assert read(tmp_path / "hub") == read(plain)
    assert list(entries(tmp_path / "hub")) == list(entries(plain))


def test_the_test_file_has_no_answers(tmp_path: Path) -> None:
    (question,) = read(array(tmp_path / "test.json", {name: ROWS[0][name] for name in ("_id", "question", "context")}))
    assert (question.answers, question.entity_ids, question.evidence, dict(question.meta)) == ((), (), (), {})


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"question": None}, "field `question`: is null"),
        ({"supporting_facts": ["Ed Wood"]}, "field `supporting_facts`: is not a list of pairs"),
        ({"supporting_facts": [[3, 0]]}, "field `supporting_facts`: is not a list of pairs"),
        ({"supporting_facts": {"title": ["Ed Wood"], "sent_id": []}}, "`supporting_facts`: is not a list of pairs"),
        ({"_id": ""}, "field `_id`: is empty"),
    ],
)
def test_a_bad_question_is_named(tmp_path: Path, change: dict[str, Any], problem: str) -> None:
    path = array(tmp_path / "dev.json", ROWS[1], {**ROWS[0], **change})
    with pytest.raises(UserError, match=f"dev.json:2: .*{problem}"):
        read(path)


def test_a_bad_article_is_named(tmp_path: Path) -> None:
    without = {name: value for name, value in ROWS[1].items() if name != "context"}
    path = array(tmp_path / "dev.json", without, {**ROWS[0], "context": [["Ed Wood", [3]], DERRICKSON]})
    noted: list[BadRow] = []
    assert [entry.id for entry in entries(path, reject=noted.append)] == ["Scott Derrickson"]
    assert [str(error).split("dev.json:")[1].split(";")[0] for error in noted] == [
        "1: id 5a8c7595554299585d9e36b6: field `context`: is missing",
        "2: id Ed Wood: field `sentences`: is [3] (list)",
    ]

"""One small file in each peer's layout, field by field as published."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from reflectune.core.errors import UserError
from reflectune.metrics.scoring.predictions import read_predictions


def jsonl(path: Path, *rows: Any) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def whole(path: Path, value: Any, indent: int | None = None) -> Path:
    path.write_text(json.dumps(value, indent=indent), encoding="utf-8")
    return path


ROWS = [
    {"data_id": "infoseek_val_00000000", "prediction": "Italy"},
    {"data_id": "infoseek_val_00000001", "prediction": ""},
]
PMSR = {
    "record_id": "r1",
    "question_id": "infoseek_val_00000000",
    "image_id": "oven_1",
    "dataset_name": "",
    "question": "Q?",
    "image_path": "i.jpg",
    "choices": [],
    "label": "",
    "gold_answer": ["Italy"],
    "answer_eval": ["Italy", "IT"],
    "entity_text": "Rome",
    "data_split": "val_unseen_entity",
    "trajectory": {
        "question": "Q?",
        "image_path": "i.jpg",
        "final_answer": "It is Italy.",
        "records": [],
        "all_reasoning": "",
        "all_knowledge": "",
        "history_questions": ["Q?"],
    },
}
REFLECTIVA_EVQA = {"question": "Q?", "reference": ["a", "b"], "answers": "a", "question_type": "templated"}


def test_infoseeks_jsonl(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "p.jsonl", *ROWS)
    file = read_predictions(path)
    assert file.layout == "data_id"
    assert [(row.ids, row.answer) for row in file.rows] == [
        (("infoseek_val_00000000",), "Italy"),
        (("infoseek_val_00000001",), ""),
    ]
    assert file.rows[1].where == f"{path}:2"


@pytest.mark.parametrize("indent", [None, 4])
def test_echosights_retrieval_results(tmp_path: Path, indent: int | None) -> None:
    value = {
        "E-VQA_0": {"retrieved_entries": ["u1", "u2"], "retrieval_similarities": [0.9, 0.8]},
        "E-VQA_1": {"retrieved_entries": ["u1"], "reranked_entries": ["u3"], "reranked_sections": ["…"]},
    }
    file = read_predictions(whole(tmp_path / "r.json", value, indent))
    assert file.layout == "echosight_retrieval"
    assert [(row.ids, row.answer, row.retrieved) for row in file.rows] == [
        (("E-VQA_0",), None, ("u1", "u2")),
        (("E-VQA_1",), None, ("u3",)),
    ]


@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize("count", [1, 2])
def test_an_object_of_predictions_is_read_on_one_line_or_several(
    tmp_path: Path, indent: int | None, count: int
) -> None:
    path = whole(tmp_path / "p.json", {f"q{n}": {"prediction": "Italy"} for n in range(count)}, indent)
    assert [(row.ids, row.answer) for row in read_predictions(path).rows] == [
        ((f"q{n}",), "Italy") for n in range(count)
    ]
    path.write_text('{"q0": {"prediction": "Italy"},\n "q1": {"prediction": "Rome"}}\n')
    assert [row.answer for row in read_predictions(path).rows] == ["Italy", "Rome"]
    (row,) = read_predictions(whole(path, ROWS[0], indent)).rows
    assert row.answer == "Italy"
    with pytest.raises(UserError, match=r"p.json:2: field 'retrieved_entries' is missing, which the first"):
        read_predictions(whole(path, [{"data_id": "q", "retrieved_entries": ["e"]}, {"data_id": "r"}], indent))


@pytest.mark.parametrize("field", ["retrieved_entries", "reranked_entries"])
def test_echosights_entries_are_lists_of_urls(tmp_path: Path, field: str) -> None:
    value = {"E-VQA_0": {"retrieved_entries": ["u1"], field: "u3"}}
    with pytest.raises(UserError, match=f"field `{field}`: expected a list of URLs"):
        read_predictions(whole(tmp_path / "r.json", value, None))


def test_reflectivas_folder_of_splits(tmp_path: Path) -> None:
    whole(tmp_path / "split_0.json", ROWS[:1])
    whole(tmp_path / "split_1.json", ROWS[1:])
    whole(tmp_path / "results.json", {"FINAL SCORE": 1})
    jsonl(tmp_path / "merge.jsonl", *ROWS, *ROWS)  # of an older run: ReflectiVA would take it unchecked
    assert [row.ids[0] for row in read_predictions(tmp_path).rows] == [row["data_id"] for row in ROWS]


def test_reflectivas_rows_on_evqa_have_no_id(tmp_path: Path) -> None:
    (row,) = read_predictions(whole(tmp_path / "p.json", [REFLECTIVA_EVQA])).rows
    assert (row.ids, row.answer, row.question, row.references) == ((), "a", "Q?", ("a", "b"))


def test_pmsrs_trajectories(tmp_path: Path) -> None:
    (row,) = read_predictions(jsonl(tmp_path / "p.jsonl", PMSR)).rows
    assert (row.ids, row.answer) == (("r1", "infoseek_val_00000000"), "It is Italy.")
    assert row.row["entity_text"] == "Rome"


def test_our_own_traces(tmp_path: Path) -> None:
    trace = {"id": "q1", "question_id": "q1", "pipeline": "mr2ag", "answer": "red", "hits": [{"entry_id": "e1"}]}
    file = read_predictions(jsonl(tmp_path / "t.jsonl", {"fingerprint": "ab"}, trace))
    assert file.layout == "traces"
    assert [(row.ids, row.answer, row.retrieved) for row in file.rows] == [(("q1",), "red", ("e1",))]


def test_traces_of_several_pipelines_are_refused(tmp_path: Path) -> None:
    for name in ("closed_book", "mr2ag"):
        (tmp_path / f"{name}.jsonl").write_text(
            json.dumps({"question_id": "q", "pipeline": name, "answer": "a"}) + "\n"
        )
    with pytest.raises(UserError, match="has traces of closed_book, mr2ag; give the file of one of them"):
        read_predictions(tmp_path)


def test_our_own_traces_in_parquet(tmp_path: Path) -> None:
    answered = {"answer": "red", "hits": [{"entry_id": "e1", "rank": 1}], "gate": 0.5}
    unanswered = {"answer": "", "hits": [], "gate": None}
    rows = [{"question_id": key, "pipeline": "mr2ag", **each} for key, each in (("q1", answered), ("q2", unanswered))]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "mr2ag.parquet")
    file = read_predictions(tmp_path / "mr2ag.parquet")
    assert file.layout == "traces"
    assert [(row.where, row.ids, row.answer, row.retrieved) for row in file.rows] == [
        (f"{tmp_path}/mr2ag.parquet:1", ("q1",), "red", ("e1",)),
        (f"{tmp_path}/mr2ag.parquet:2", ("q2",), "", ()),
    ]


def test_passages_texts_are_no_predictions(tmp_path: Path) -> None:
    pq.write_table(pa.table({"key": [1]}), tmp_path / "mr2ag.passages.parquet")
    with pytest.raises(UserError, match=r"no column `question_id`.*give the \.parquet file of a pipeline"):
        read_predictions(tmp_path / "mr2ag.passages.parquet")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("data_id,prediction\na,x\n", r":1: not a JSON object; write a line"),
        ('{"data_id": "a", "prediction": "x"}\n{"data_id": "b", "pred', r":2: not valid JSON .* truncated"),
        ('[{"data_id": "a", "prediction": "x"},\n{"data_id": "b"', r":2: not valid JSON .* truncated"),
        ('{"data_id": "a", "prediction": 7}', r":1: id a: field `prediction`: expected text, found 7"),
        ('{"data_id": 3, "prediction": "x"}', r":1: field `data_id`: expected text, found 3"),
        ('{"data_id": "", "prediction": "x"}', r":1: field `data_id`"),
        ('{"data_id": "a", "prediction": "x"}\n{"data_id": "b"}', r":2: id b: field `prediction`"),
        ('{"id": "a", "output": "x"}', r":1: fields id, output fit no known layout"),
        ("[1]", r":1: expected an object"),
        ("[]", "no predictions"),
        ("", "no predictions"),
        (f'{{"data_id": "a", "prediction": {"9" * 5000}}}', "not valid JSON"),
        (f'{{"data_id": "a", "prediction": {"[" * 100_000}', "not valid JSON"),
        (f'{{"data_id": "a", "prediction": "x"}}\n{"[" * 100_000}', ":2: not valid JSON"),
        ('{"trajectory": {}}', r":1: expected `record_id` or `question_id`"),
        ('{"trajectory": 1, "record_id": "a"}', r":1: expected an object"),
        ('[{"question": "Q", "reference": "a|b", "answers": "a"}]', r":1: field `reference`: expected a list"),
    ],
)
def test_a_bad_row_is_named_by_file_line_id_and_field(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "p.json"
    path.write_text(text)
    with pytest.raises(UserError, match=said) as caught:
        read_predictions(path)
    assert str(path) in str(caught.value)


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="can't be read"):
        read_predictions(tmp_path / "none.json")
    with pytest.raises(UserError, match=r"no \.json file"):
        read_predictions(tmp_path)
    (tmp_path / "b").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match="can't be read"):
        read_predictions(tmp_path / "b")


@pytest.mark.parametrize(
    "text", ["".join(json.dumps(row) + "\n" for row in ROWS), json.dumps(ROWS)], ids=["lines", "array"]
)
def test_a_byte_order_mark_is_no_part_of_the_first_row(tmp_path: Path, text: str) -> None:
    (tmp_path / "p.json").write_text(text, encoding="utf-8-sig")
    assert [row.answer for row in read_predictions(tmp_path / "p.json").rows] == ["Italy", ""]

"""Files for the official programs: their rows, and that their score is that of the traces."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from reflectune.core.durable import write_json
from reflectune.core.errors import UserError
from reflectune.core.types import Metric, Question
from reflectune.formats.dataset import write_questions
from reflectune.metrics import score as score_command
from reflectune.metrics.scoring.predictions import Prediction, read_predictions
from reflectune.metrics.scoring.scoring import join, score
from reflectune.metrics.scoring.submission import (
    Layout,
    as_text,
    layout_for,
    official_ids,
    submission_rows,
    write_submission,
)

INFOSEEK = [
    Question("infoseek_val_00000019", "", "How high?", ("27",), (24.3, 29.7), "numerical", "val_unseen_question", True),
    Question("infoseek_val_00000023", "", "When?", ("1826",), None, "time", "val_unseen_entity", True),
]
EVQA = [
    Question(f"evqa_test_0000000{n}", "", text, answers, None, answer_type, "test", True, meta=meta | {"row": str(n)})
    for n, (text, answers, answer_type, meta) in enumerate(
        [
            ("When?", ("1925 ",), "string", {"question_type": "templated"}),
            ("What?", ("harbours&&estuaries", "estuaries"), "multi_answer", {"question_type": "multi_answer"}),
            ("Where?", ("Peru",), "string", {"question_type": "2_hop"}),
        ]
    )
]
VQA = [Question(key, "", "What?", ("race",) * 10, split="val", requires_retrieval=True) for key in ("2971475", "17")]
SETS: dict[Layout, list[Question]] = {"infoseek": INFOSEEK, "evqa": EVQA, "vqa": VQA}
METRICS: dict[Layout, Metric] = {"infoseek": "infoseek", "evqa": "evqa_exact", "vqa": "vqa"}
ANSWERS: dict[Layout, list[str]] = {
    "infoseek": ["about 28", "1962"],
    "evqa": ["1925", "estuaries&&harbours", "Chile"],
    "vqa": ["race", "pony"],
}


def answers_to(layout: Layout) -> dict[str, str]:
    return {question.id: answer for question, answer in zip(SETS[layout], ANSWERS[layout], strict=True)}


def good_rows(layout: Layout) -> list[dict[str, Any]]:
    return submission_rows(layout, SETS[layout], answers_to(layout))


def test_rows_are_in_each_programs_layout() -> None:
    assert good_rows("infoseek")[0] == {"data_id": "infoseek_val_00000019", "prediction": "about 28"}
    assert good_rows("vqa") == [{"question_id": 2971475, "answer": "race"}, {"question_id": 17, "answer": "pony"}]
    assert good_rows("evqa")[1] == {
        "data_id": "E-VQA_1",
        "candidate": "estuaries,harbours",
        "question": "What?",
        "reference_list": ["harbours&&estuaries", "estuaries"],
        "question_type": "multi_answer",
    }
    assert isinstance(json.loads(as_text("vqa", good_rows("vqa"))), list)
    assert [json.loads(line) for line in as_text("evqa", good_rows("evqa")).splitlines()] == good_rows("evqa")


@pytest.mark.parametrize("layout", SETS)
def test_a_written_file_scores_as_the_traces_do(tmp_path: Path, layout: Layout) -> None:
    traces, path = tmp_path / "traces.jsonl", tmp_path / "file"
    rows = [{"question_id": key, "pipeline": "mr2ag", "answer": answer} for key, answer in answers_to(layout).items()]
    traces.write_text("".join(json.dumps(row) + "\n" for row in rows))
    write_submission(path, layout, traces, SETS[layout], answered_splits_only=True)
    assert path.read_text(encoding="ascii") == as_text(layout, good_rows(layout))
    both = [
        score(join(read_predictions(file).rows, SETS[layout], mode), METRICS[layout], mode).values.tolist()
        for file in (traces, path)
        for mode in ("official", "strict")
    ]
    assert both[0] == both[1] == both[2] == both[3]
    assert 0 < sum(both[0]) < len(both[0])


def test_a_further_image_of_a_row_is_no_row_of_its_own(tmp_path: Path) -> None:
    twice = [*EVQA, Question("evqa_test_00000000-2", "", "When?", ("1925 ",), split="test", meta=EVQA[0].meta)]
    rows = submission_rows("evqa", twice, {**answers_to("evqa"), "evqa_test_00000000-2": "other"})
    assert rows == good_rows("evqa")


def test_one_file_is_of_one_split_where_ids_are_row_numbers() -> None:
    val = Question("evqa_val_00000000", "", "When?", ("1900",), split="val", meta={"row": "0"})
    with pytest.raises(UserError, match="E-VQA_0 is a question of test and of val"):
        submission_rows("evqa", [*EVQA, val], {}, fill=True)
    with pytest.raises(UserError, match="E-VQA_0 is a row of test and val; set `splits`"):
        join([Prediction("p:1", ("E-VQA_0",), "1925")], [*EVQA, val], "official")


def test_missing_answers_are_refused_or_filled() -> None:
    with pytest.raises(UserError, match=r"2 of 3 questions have no answer, e\.g\. E-VQA_1"):
        submission_rows("evqa", EVQA, {EVQA[0].id: "1925"})
    assert [row["answer"] for row in submission_rows("vqa", VQA, {}, fill=True)] == ["", ""]


def test_the_official_file_says_what_must_be_covered(tmp_path: Path) -> None:
    official = tmp_path / "questions.json"
    official.write_text(json.dumps({"questions": [{"question_id": number} for number in (2971475, 17, 99)]}))
    expected = official_ids("vqa", official)
    with pytest.raises(UserError, match=r"1 of 3 questions have no answer, e\.g\. 99"):
        submission_rows("vqa", VQA, answers_to("vqa"), expected=expected)
    rows = submission_rows("vqa", VQA, answers_to("vqa"), expected=expected, fill=True)
    assert rows[-1] == {"question_id": 99, "answer": ""}
    table = tmp_path / "test.csv"
    table.write_text('question,answer\n"a\nb",c\nd,e\n')
    assert official_ids("evqa", table) == ["E-VQA_0", "E-VQA_1"]
    with pytest.raises(UserError, match=r"lacks 1 of the official questions, e\.g\. E-VQA_9"):
        submission_rows("evqa", EVQA, answers_to("evqa"), expected=["E-VQA_9"], fill=True)
    with pytest.raises(UserError, match="is not a file of questions in the layout vqa"):
        official_ids("vqa", table)


def test_ids_of_another_data_set_have_no_official_form() -> None:
    with pytest.raises(UserError, match="has an id that isn't a number"):
        submission_rows("vqa", EVQA, {}, fill=True)
    with pytest.raises(UserError, match="does not say which row"):
        submission_rows("evqa", VQA, {}, fill=True)
    with pytest.raises(UserError, match="scored by cover_match"):
        layout_for("cover_match")


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    for question in INFOSEEK:
        write_questions(folder, question.split, [question])
    write_questions(folder, "test", [Question("infoseek_test_00000000", "", "Who?", split="test")])
    write_json(folder / "dataset.json", {"metric": "infoseek", "fingerprint": "f"})
    return folder


def run(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> None:
    monkeypatch.setattr(sys, "argv", ["score", *map(str, arguments)])
    score_command.score.main()


def test_the_command_writes_the_file_in_place_of_scores(tmp_path, dataset, monkeypatch, capsys) -> None:
    given, output = tmp_path / "p.jsonl", tmp_path / "out.jsonl"
    rows = [{"data_id": question.id, "prediction": "1826"} for question in INFOSEEK]
    given.write_text("".join(json.dumps(row) + "\n" for row in [*rows, {"data_id": "x", "prediction": "y"}]))
    run(monkeypatch, "--predictions", given, "--dataset", dataset, "--submission", output, "--metric", "infoseek")
    printed = capsys.readouterr().out
    assert f"submission: {output} (infoseek, 2 rows; 1 answers to unknown questions are left out)" in printed
    written = [json.loads(line) for line in output.read_text().splitlines()]
    assert sorted(written, key=lambda row: row["data_id"]) == rows


def test_a_set_without_answers_can_be_written(tmp_path: Path, dataset: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given, output = tmp_path / "p.jsonl", tmp_path / "out.jsonl"
    given.write_text(json.dumps({"data_id": "infoseek_test_00000000", "prediction": "Ada"}) + "\n")
    run(monkeypatch, "--predictions", given, "--dataset", dataset, "--submission", output, "--metric", "infoseek")
    assert json.loads(output.read_text()) == {"data_id": "infoseek_test_00000000", "prediction": "Ada"}

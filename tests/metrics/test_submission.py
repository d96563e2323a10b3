"""Files for the official programs: what is written, what a check finds, and that the score stays the same."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from reflectune.core.durable import write_json
from reflectune.core.errors import UserError
from reflectune.core.types import Metric, Question
from reflectune.formats.dataset import write_questions
from reflectune.metrics import submission
from reflectune.metrics.scoring.predictions import read_predictions
from reflectune.metrics.scoring.scoring import join, score
from reflectune.metrics.scoring.submission_file import (
    Layout,
    as_text,
    check,
    official_id,
    official_ids,
    submission_rows,
)
from reflectune.metrics.scoring.submission_report import layout_for, read_answers

INFOSEEK = [
    Question("infoseek_val_00000019", "", "How high?", ("27",), (24.3, 29.7), "numerical", "val_unseen_question", True),
    Question("infoseek_val_00000023", "", "When?", ("1826",), None, "time", "val_unseen_entity", True),
]
EVQA = [
    Question(
        f"evqa_test_0000000{n}",
        "",
        text,
        answers,
        answer_type="multi_answer" if kind == "multi_answer" else "string",
        split="test",
        requires_retrieval=True,
        meta={"row": str(n), "question_type": kind},
    )
    for n, (text, answers, kind) in enumerate(
        [
            ("When?", ("1925 ",), "templated"),
            ("What?", ("harbours&&estuaries", "estuaries"), "multi_answer"),
            ("Where?", ("Peru",), "2_hop"),
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
    return {question.id: said for question, said in zip(SETS[layout], ANSWERS[layout], strict=True)}


def good_rows(layout: Layout) -> list[dict[str, Any]]:
    return submission_rows(layout, SETS[layout], answers_to(layout))


def write(path: Path, layout: Layout, rows: list[dict[str, Any]]) -> Path:
    path.write_text(as_text(layout, rows), encoding="ascii")
    return path


def test_rows_are_in_each_programs_layout() -> None:
    assert good_rows("infoseek")[0] == {"data_id": "infoseek_val_00000019", "prediction": "about 28"}
    assert good_rows("vqa") == [
        {"question_id": 2971475, "answer": "race"},
        {"question_id": 17, "answer": "pony"},
    ]
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
def test_a_file_that_was_written_is_fit_and_scores_as_the_traces_do(tmp_path: Path, layout: Layout) -> None:
    traces = tmp_path / "traces.jsonl"
    rows = [{"question_id": key, "pipeline": "mr2ag", "answer": said} for key, said in answers_to(layout).items()]
    traces.write_text("".join(json.dumps(row) + "\n" for row in rows))
    answers = read_answers(traces, SETS[layout], touched=True)
    path = write(tmp_path / "file", layout, submission_rows(layout, answers.questions, answers.by_id))
    assert check(path, layout, SETS[layout]) == []
    both = [
        score(join(read_predictions(file).rows, SETS[layout], mode), METRICS[layout], mode).values.tolist()
        for file in (traces, path)
        for mode in ("official", "strict")
    ]
    assert both[0] == both[1] == both[2] == both[3]
    assert 0 < sum(both[0]) < len(both[0])


Change = Callable[[list[dict[str, Any]]], None]
DEFECTS: dict[str, tuple[Layout, str, Change]] = {
    "infoseek-missing": ("infoseek", "missing", lambda rows: rows.pop()),
    "infoseek-unknown": ("infoseek", "unknown", lambda rows: rows.append({"data_id": "x", "prediction": "?"})),
    "infoseek-doubled": ("infoseek", "doubled", lambda rows: rows.append(rows[0])),
    "infoseek-answer-is-no-text": ("infoseek", "type", lambda rows: rows[0].update(prediction=28)),
    "infoseek-empty": ("infoseek", "empty", lambda rows: rows[0].update(prediction=" ")),
    "infoseek-no-answer": ("infoseek", "field", lambda rows: rows[0].pop("prediction")),
    "evqa-altered-type": ("evqa", "altered", lambda rows: rows[0].update(question_type="2_hop")),
    "evqa-altered-references": ("evqa", "altered", lambda rows: rows[0].update(reference_list=["1926"])),
    "evqa-unknown": ("evqa", "unknown", lambda rows: rows.append({**rows[0], "data_id": "E-VQA_3"})),
    "evqa-missing": ("evqa", "missing", lambda rows: rows.pop(0)),
    "evqa-null": ("evqa", "type", lambda rows: rows[0].update(candidate=None)),
    "vqa-missing": ("vqa", "missing", lambda rows: rows.pop()),
    "vqa-unknown": ("vqa", "unknown", lambda rows: rows.append({"question_id": 18, "answer": "a"})),
    "vqa-doubled": ("vqa", "doubled", lambda rows: rows.append(rows[0])),
    "vqa-list": ("vqa", "type", lambda rows: rows[0].update(answer=["race"])),
    "vqa-empty": ("vqa", "empty", lambda rows: rows[0].update(answer="")),
}


@pytest.mark.parametrize(("layout", "kind", "change"), DEFECTS.values(), ids=DEFECTS.keys())
def test_each_defect_is_named_alone(tmp_path: Path, layout: Layout, kind: str, change: Change) -> None:
    rows = good_rows(layout)
    change(rows)
    (defect,) = check(write(tmp_path / "file", layout, rows), layout, SETS[layout])
    assert (defect.kind, defect.count) == (kind, 1)
    assert defect.is_unfit == (kind != "empty")
    assert defect.consequence


def test_an_id_of_the_wrong_type_is_also_missing(tmp_path: Path) -> None:
    rows = good_rows("vqa")
    rows[0]["question_id"] = "2971475"
    first, second = check(write(tmp_path / "file", "vqa", rows), "vqa", VQA)
    assert (first.kind, second.kind) == ("type", "missing")
    assert "`question_id` is str instead of int" in first.examples[0]
    assert second.examples == ("2971475",)


def test_lines_that_are_no_rows_are_told_with_their_place(tmp_path: Path) -> None:
    path = write(tmp_path / "file", "infoseek", good_rows("infoseek"))
    path.write_text(path.read_text() + "\n[]\n{\n")
    (defect,) = check(path, "infoseek", INFOSEEK)
    assert (defect.kind, defect.count) == ("unreadable", 3)
    assert f"{path}:3: an empty line" in defect.examples
    assert f"{path}:4: list instead of an object" in defect.examples
    path.write_text('{"question_id": 17, "answer": "a"}')
    kinds = [defect.kind for defect in check(path, "vqa", VQA)]
    assert kinds == ["unreadable", "missing"]
    assert "3 missing" in str(check(write(path, "evqa", []), "evqa", EVQA)[0])


def test_a_further_picture_of_a_row_is_no_row_of_its_own(tmp_path: Path) -> None:
    twice = [*EVQA, Question("evqa_test_00000000-2", "", "When?", ("1925 ",), split="test", meta=EVQA[0].meta)]
    rows = submission_rows("evqa", twice, {**answers_to("evqa"), "evqa_test_00000000-2": "other"})
    assert rows == good_rows("evqa")


def test_one_file_is_of_one_split_where_ids_are_row_numbers() -> None:
    val = Question("evqa_val_00000000", "", "When?", ("1900",), split="val", meta={"row": "0"})
    with pytest.raises(UserError, match="E-VQA_0 is a question of test and of val"):
        submission_rows("evqa", [*EVQA, val], {}, fill=True)
    prediction = {"data_id": "E-VQA_0", "prediction": "1925"}
    with pytest.raises(UserError, match="E-VQA_0 is a row of test and val; set `splits`"):
        join([reader_row(prediction)], [*EVQA, val], "official")


def reader_row(row: dict[str, Any]) -> Any:
    from reflectune.metrics.scoring.predictions import Prediction

    return Prediction("p:1", (row["data_id"],), row["prediction"])


def test_missing_answers_are_refused_or_filled() -> None:
    with pytest.raises(UserError, match=r"2 of 3 questions have no answer, e\.g\. E-VQA_1"):
        submission_rows("evqa", EVQA, {EVQA[0].id: "1925"})
    assert [row["answer"] for row in submission_rows("vqa", VQA, {}, fill=True)] == ["", ""]


def test_the_official_file_says_what_must_be_covered(tmp_path: Path) -> None:
    official = tmp_path / "questions.json"
    official.write_text(json.dumps({"questions": [{"question_id": number} for number in (2971475, 17, 99)]}))
    expected = official_ids("vqa", official)
    path = write(tmp_path / "file", "vqa", good_rows("vqa"))
    assert [(defect.kind, defect.examples) for defect in check(path, "vqa", VQA, expected)] == [("missing", ("99",))]
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
    with pytest.raises(UserError, match="has no number as its id"):
        official_id("vqa", EVQA[0])
    with pytest.raises(UserError, match="does not say which row"):
        official_id("evqa", VQA[0])
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
    monkeypatch.setattr(sys, "argv", ["submission", *map(str, arguments)])
    submission.submission.main()


def test_the_command_writes_and_checks(
    tmp_path: Path, dataset: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given, output = tmp_path / "p.jsonl", tmp_path / "out.jsonl"
    rows = [{"data_id": question.id, "prediction": "1826"} for question in INFOSEEK]
    given.write_text("".join(json.dumps(row) + "\n" for row in [*rows, {"data_id": "x", "prediction": "y"}]))
    run(monkeypatch, "--predictions", given, "--dataset", dataset, "--output", output)
    said = capsys.readouterr().out
    assert "2 answers of" in said
    assert "left out: 1 to no question" in said
    assert f"{output} (infoseek, 2 questions of the data set): fit to be handed in" in said
    assert "unreleased" not in said
    run(monkeypatch, "--check", output, "--dataset", dataset)
    assert "fit to be handed in" in capsys.readouterr().out
    output.write_text(output.read_text() * 2)
    with pytest.raises(SystemExit) as caught:
        run(monkeypatch, "--check", output, "--dataset", dataset)
    assert caught.value.code == 2
    printed = capsys.readouterr()
    assert "2 doubled" in printed.out
    assert "is not fit to be handed in" in printed.err


def test_a_set_without_answers_is_written_and_said_to_be_unreleased(
    tmp_path: Path, dataset: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given, output = tmp_path / "p.jsonl", tmp_path / "out.jsonl"
    given.write_text(json.dumps({"data_id": "infoseek_test_00000000", "prediction": "Ada"}) + "\n")
    run(monkeypatch, "--predictions", given, "--dataset", dataset, "--output", output)
    said = capsys.readouterr().out
    assert "1 of the questions have no answers in the data set" in said
    assert "test and human sets are unreleased" in said
    assert json.loads(output.read_text()) == {"data_id": "infoseek_test_00000000", "prediction": "Ada"}


def test_wrong_settings_are_told_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        run(monkeypatch, "--dataset", tmp_path, "--predictions", tmp_path / "no", "--check", __file__)
    said = capsys.readouterr().err
    for problem in ("give either `predictions`", "`output` is needed", "has no dataset.json", "not found"):
        assert problem in said

"""Repaired answers: what is read from a file, what it does to a question, and the tables that come of it."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from reflectune.core.durable import write_json
from reflectune.core.errors import UserError
from reflectune.core.types import Question
from reflectune.formats.dataset import write_questions
from reflectune.metrics import score as command
from reflectune.metrics.scoring.predictions import Prediction
from reflectune.metrics.scoring.registry import metric_of_one
from reflectune.metrics.scoring.repair_table import repair_table, setting_table
from reflectune.metrics.scoring.repairs import read_repairs, stated_range
from reflectune.metrics.scoring.scoring import join, score

COUNTRY = Question("q0", "", "What country?", ("cn", "China"), split="val", requires_retrieval=True)
HEIGHT = Question("q1", "", "How high?", ("27",), (24.3, 29.7), "numerical", "val", True)
FOUNDER = Question("q2", "", "Who founded it?", ("Stefan",), split="val", requires_retrieval=True)
ROW = Question("evqa_test_00000007", "", "How tall?", ("20 cm", "2 dm"), split="val", meta={"row": "7"})
QUESTIONS = [COUNTRY, HEIGHT, FOUNDER, ROW]
HEADER = ("data_id", "question", "question_original", "answer", "question_type")


def write_csv(path: Path, rows: Sequence[Sequence[str]], header: Sequence[str] = HEADER) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header, *rows])
    return path


def write_lines(path: Path, *rows: object) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        pytest.param("27", (24.3, 29.7), id="ten-percent"),
        pytest.param("20,000 people", (18000, 22000), id="thousands"),
        pytest.param("170–200 cm", (170, 200), id="dash"),
        pytest.param("six to seven months", (6, 7), id="words"),
        pytest.param("825.56 km²", (743.004, 908.116), id="unit"),
        pytest.param("nearly two", (1.8, 2.2), id="word"),
        pytest.param("-10", (-11, -9), id="below-zero"),
        pytest.param("many", None, id="none"),
    ],
)
def test_the_range_that_an_answer_states(answer: str, expected: tuple[float, float] | None) -> None:
    assert stated_range(answer) == (pytest.approx(expected) if expected else None)


def test_aras_file_of_infoseek_is_read(tmp_path: Path) -> None:
    rows = [
        ("q0", "Which country is it in?", "What country?", "China", "String"),
        ("q1", "How high?", "How high?", "41", "Numerical"),
        ("q2", "Which king?", "who founded  it?", "King Stefan", "String"),
        ("q9", "Why?", "Why?", "So", "String"),
    ]
    repairs = read_repairs(write_csv(tmp_path / "infoseek_fixed.csv", rows), QUESTIONS)
    assert repairs.unknown == 1
    country, height, founder = (repairs.kept[key] for key in ("q0", "q1", "q2"))
    assert (country.after.answers, country.is_answer_changed, country.is_reworded) == (("cn", "China"), False, True)
    assert (height.after.range, height.is_reworded) == (pytest.approx((36.9, 45.1)), False)
    assert (founder.after.answers, founder.is_answer_changed) == (("King Stefan",), True)
    assert metric_of_one("infoseek")("about 40", height.after) == 1.0


def test_aras_file_of_evqa_is_read_by_row_number(tmp_path: Path) -> None:
    header = ("data_id", "question", "question_before_review", "answer", "question_type")
    path = write_csv(tmp_path / "evqa_fixed.csv", [("E-VQA_7", "How wide?", "How tall?", "20 cm", "templated")], header)
    (repaired,) = read_repairs(path, QUESTIONS).kept.values()
    assert (repaired.before.id, repaired.after.answers, repaired.after.text) == (ROW.id, ("20 cm",), "How wide?")


def test_a_file_of_ones_own_repairs_and_drops(tmp_path: Path) -> None:
    path = write_lines(
        tmp_path / "repairs.jsonl",
        {"question_id": "q0", "answers": ["Tibet"], "question_before": "What country?"},
        {"question_id": "q1", "range": [10, 12]},
        {"question_id": "q2", "dropped": True},
        {"question_id": ROW.id, "question": "How tall is it?"},
    )
    repairs = read_repairs(path, QUESTIONS)
    assert repairs.dropped == ("q2",)
    assert repairs.kept["q0"].after.answers == ("Tibet",)
    assert repairs.kept["q1"].after.range == (10.0, 12.0)
    reworded = repairs.kept[ROW.id]
    assert (reworded.after.answers, reworded.is_answer_changed, reworded.is_reworded) == (ROW.answers, False, True)


def test_a_byte_order_mark_is_no_part_of_the_first_row(tmp_path: Path) -> None:
    """Excel writes one before a CSV."""
    table = write_csv(tmp_path / "infoseek_fixed.csv", [("q2", "Who founded it?", "", "Anna", "String")])
    lines = write_lines(tmp_path / "own.jsonl", {"question_id": "q2", "answers": ["Anna"]})
    for path in (table, lines):
        path.write_text(path.read_text(encoding="utf-8"), encoding="utf-8-sig")
        assert read_repairs(path, QUESTIONS).kept["q2"].after.answers == ("Anna",)


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        pytest.param([{"question_id": "q0"}], "q0 is neither repaired nor dropped", id="nothing"),
        pytest.param([{"answers": ["a"]}], ":1: expected an object with `question_id`", id="no-id"),
        pytest.param([{"question_id": "q0", "answers": "a"}], "should be a list of texts", id="no-list"),
        pytest.param([{"question_id": "q1", "range": [1]}], "should be two numbers", id="no-range"),
        pytest.param([{"question_id": "q1", "answers": ["many"]}], "q1 wants a number, found 'many'", id="no-number"),
        pytest.param([{"question_id": "q0", "answers": ["a"], "question": 1}], "should be text", id="no-text"),
        pytest.param([{"question_id": "q0", "answers": ["a"]}] * 2, ":2: q0 has an earlier row", id="doubled"),
        pytest.param([{"question_id": "x", "answers": ["a"]}], "repairs no question", id="other-set"),
        pytest.param(
            [{"question_id": "q0", "answers": ["a"], "question_before": "Who?"}], "asked 'Who?' before", id="other-text"
        ),
    ],
)
def test_a_damaged_file_is_an_error_that_names_the_row(tmp_path: Path, rows: list[object], problem: str) -> None:
    with pytest.raises(UserError, match=problem.replace("?", r"\?")):
        read_repairs(write_lines(tmp_path / "repairs.jsonl", *rows), QUESTIONS)


def test_a_csv_of_another_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"a\.csv:2: `data_id` is missing or empty"):
        read_repairs(write_csv(tmp_path / "a.csv", [("x",)], ("question",)), QUESTIONS)
    with pytest.raises(UserError, match="`answer` holds no answer"):
        read_repairs(write_csv(tmp_path / "b.csv", [("q0", "What country?", "", " | ", "templated")]), QUESTIONS)


def test_the_same_answers_are_scored_before_and_after(tmp_path: Path) -> None:
    """Ten questions; the first five get another answer, and one is dropped. By hand: 6 of 9 right before, 3 after."""
    questions = [Question(f"q{n}", "", "What?", (f"old {n}",), split="val", requires_retrieval=True) for n in range(10)]
    rows = [{"question_id": f"q{n}", "answers": [f"new {n}"]} for n in range(5)]
    rows += [{"question_id": f"q{n}", "question": "What is it?"} for n in range(5, 9)]
    repairs = read_repairs(write_lines(tmp_path / "r.jsonl", *rows, {"question_id": "q9", "dropped": True}), questions)
    said = ["old 0", "old 1", "old 2", "old 3", "new 4", "old 5", "old 6", "?", "?", "old 9"]
    predictions = [Prediction(f"p:{n}", (f"q{n}",), answer) for n, answer in enumerate(said)]
    again = [Prediction(f"p:{n}", (f"q{n}",), f"new {n}") for n in range(3)]
    joined = join(predictions, questions, "official")
    table = repair_table(joined, repairs, "exact_match", "official", None, 0, join(again, questions, "official"))
    by_name = {row["name"]: row for row in table["rows"]}
    every, changed = by_name["all"], by_name["answers changed"]
    assert (every["n"], every["original"]["value"], every["repaired"]["value"]) == (9, 6 / 9, 3 / 9)
    assert every["difference"]["value"] == pytest.approx(-3 / 9)
    assert every["difference"]["low"] < -3 / 9 < every["difference"]["high"]
    assert (changed["n"], changed["original"]["value"], changed["repaired"]["value"]) == (5, 4 / 5, 1 / 5)
    assert (changed["difference"]["better"], changed["difference"]["worse"]) == (1, 4)
    assert changed["asked_again"]["n"] == 3
    assert (changed["asked_again"]["value"], changed["asked_again_difference"]["value"]) == (1.0, 0.0)
    assert by_name["reworded, same answers"]["difference"]["value"] == 0.0
    assert by_name["unchanged"]["original"] is None
    assert table["counts"]["dropped"] == 1


def test_strict_mode_counts_missing_answers_on_both_sides(tmp_path: Path) -> None:
    path = write_lines(
        tmp_path / "r.jsonl", {"question_id": "q0", "answers": ["Tibet"]}, {"question_id": "q2", "answers": ["King"]}
    )
    joined = join([Prediction("p:1", ("q0",), "Tibet")], QUESTIONS, "strict")
    table = repair_table(joined, read_repairs(path, QUESTIONS), "exact_match", "strict", None, 0)
    row = table["rows"][0]
    assert (row["n"], row["original"]["value"], row["repaired"]["value"]) == (2, 0.0, 0.5)
    assert table["counts"]["unanswered"] == 1


def test_one_entity_against_two_is_paired_by_the_anchor() -> None:
    said = {"one_entity": "aaab", "intra_category": "abba", "inter_category": "aab"}
    questions = [
        Question(f"{setting}{n}", "", "What?", ("a",), split="val", meta={"setting": setting, "anchor": str(n)})
        for setting, letters in said.items()
        for n in range(len(letters))
    ]
    answers = [letter for letters in said.values() for letter in letters]
    predictions = [Prediction("p", (q.id,), answer) for q, answer in zip(questions, answers, strict=True)]
    scored = score(join(predictions, questions, "official"), "exact_match", "official")
    alone, intra, inter = setting_table(scored, 0)
    assert (alone["score"]["value"], alone["difference"]) == (0.75, None)
    assert (intra["score"]["value"], intra["difference"]["value"], intra["difference"]["n"]) == (0.5, -0.25, 4)
    assert (inter["score"]["n"], inter["difference"]["n"]) == (3, 3)
    assert inter["difference"]["value"] == pytest.approx(-1 / 3)
    assert setting_table(score(join([], QUESTIONS, "official"), "exact_match", "official"), 0) == []


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    write_questions(tmp_path / "data", "val", QUESTIONS)
    write_json(tmp_path / "data" / "dataset.json", {"metric": "exact_match", "fingerprint": "f"})
    return tmp_path / "data"


def run(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> None:
    monkeypatch.setattr(sys, "argv", ["score", *map(str, arguments)])
    command.score.main()


def test_the_command_prints_the_table(
    tmp_path: Path, dataset: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given = write_lines(tmp_path / "p.jsonl", {"data_id": "q0", "prediction": "China"})
    repairs = write_lines(tmp_path / "r.jsonl", {"question_id": "q0", "answers": ["Tibet"]})
    flags = ("--predictions", given, "--dataset", dataset, "--repairs", repairs)
    run(monkeypatch, *flags, "--repaired_predictions", given, "--output", tmp_path / "scores.json")
    said = capsys.readouterr().out
    assert "1 questions, 1 with other answers, 0 reworded" in said
    assert "asked again" in said
    rows = json.loads((tmp_path / "scores.json").read_text())["repairs"]["rows"]
    assert (rows[0]["original"]["value"], rows[0]["repaired"]["value"]) == (1.0, 0.0)
    with pytest.raises(SystemExit):
        run(monkeypatch, "--predictions", given, "--dataset", dataset, "--repaired_predictions", given)
    assert "`repairs` is needed by `repaired_predictions`" in capsys.readouterr().err

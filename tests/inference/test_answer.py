"""`answer --evaluation` shows how an evaluation answered its questions."""

import json
import sys
from pathlib import Path

import pytest

from reflectune.core.launching import ALONE
from reflectune.formats.dataset import write_questions
from reflectune.inference import answer
from reflectune.inference.trace import Trace, from_row, to_row
from reflectune.inference.trace_files.keeping import TraceStore


@pytest.fixture
def evaluation(make, tmp_path: Path) -> Path:
    """A folder with traces of two pipelines in JSONL and of one in Parquet; each has the first question alone."""
    passages = (make.read("e2", answer="oak", ans=0.5), make.read("e3", rel=0.2))
    stored = {
        "mr2ag": [
            make.trace(0, gate=0.9, retrieved=True, hits=(make.hit("e2", 1),), passages=passages, chosen=0),
            make.trace(1, answer="fir", gate=0.25),
        ],
        "closed_book": [make.trace(0, "closed_book", "elm")],
        "oracle_article": [make.trace(0, "oracle_article", "", error="no image")],
    }
    for name, traces in stored.items():
        form = "parquet" if name == "mr2ag" else "jsonl"
        rows = {trace.question_id: to_row(trace) for trace in traces}
        questions = [make.question(number) for number in range(len(rows))]
        store = TraceStore(tmp_path / "traces", name, "f", form)
        store.fill(questions, lambda batch, rows=rows: [(q.id, rows[q.id]) for q in batch], 8, ALONE)
    return tmp_path


def shown(evaluation: Path, monkeypatch: pytest.MonkeyPatch, capsys, *arguments: str) -> str:
    monkeypatch.setattr(sys, "argv", ["answer.py", "--evaluation", str(evaluation), *arguments])
    answer.answer.main()
    return capsys.readouterr().out


def test_a_question_is_explained_in_words_for_every_pipeline(evaluation, monkeypatch, capsys) -> None:
    text = shown(evaluation, monkeypatch, capsys, "--question_id", "q000")
    heads = [line for line in text.splitlines() if ", question " in line]
    assert heads == [f"{name}, question q000" for name in ("closed_book", "mr2ag", "oracle_article")]
    decision = "decision: retrieve (gate 0.900)"
    for part in ("answer: elm", decision, "Title e2 – H0: It is made of oak.", "no image"):
        assert part in text


def test_with_the_data_set_a_question_is_shown_with_answers(evaluation, make, monkeypatch, capsys, tmp_path) -> None:
    question = make.question(0)
    write_questions(tmp_path, question.split, [make.question(1), question])
    text = shown(evaluation, monkeypatch, capsys, "--question_id", "q000", "--dataset", str(tmp_path))
    head = f"{question.text}\nimage: {question.image}\naccepted: {', '.join(question.answers)}\n\nclosed_book, question"
    assert text.startswith(head)
    assert question.answers


def test_a_trace_is_shown_as_json(evaluation, monkeypatch, capsys) -> None:
    text = shown(evaluation, monkeypatch, capsys, "--question_id", "q001", "--as_json")
    assert from_row(json.loads(text)) == Trace("q001", "mr2ag", "fir", gate=0.25)  # no other pipeline took it


def test_all_traces_are_lines_of_json(evaluation, monkeypatch, capsys) -> None:
    rows = [json.loads(line) for line in shown(evaluation, monkeypatch, capsys).splitlines()]
    assert [row["pipeline"] for row in rows] == ["closed_book", "mr2ag", "mr2ag", "oracle_article"]
    assert [row["question_id"] for row in rows] == ["q000", "q000", "q001", "q000"]
    assert rows[1]["passages"][0]["passage"]["text"] == "It is made of oak."


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--question_id", "q7"], "no trace of question q7 among those of closed_book, mr2ag, oracle_article"),
        (["--pipeline", "pmsr"], "has no traces of pmsr; one of closed_book, mr2ag, oracle_article"),
        (["--evaluation", "nowhere"], "nowhere has no finished pipeline in traces/"),
        (["--evaluation", ""], "`image` is needed"),
    ],
    ids=["question", "pipeline", "folder", "nothing"],
)
def test_a_missing_trace_is_named(evaluation, monkeypatch, capsys, arguments: list[str], problem: str) -> None:
    with pytest.raises(SystemExit) as caught:
        shown(evaluation, monkeypatch, capsys, *arguments)
    assert caught.value.code == 2
    assert problem in capsys.readouterr().err

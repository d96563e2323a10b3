"""The entry point over a small data set folder, and what a person reads."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from reflectune.core.durable import write_json
from reflectune.core.types import Question
from reflectune.formats.dataset import write_questions
from reflectune.metrics import score

Run = Callable[..., "subprocess.CompletedProcess[str]"]

SPLITS = ("val_unseen_question", "val_unseen_entity")


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    for split in (*SPLITS, "train", "test"):
        questions = [Question(f"{split}_{n}", "", "What?", answers=(f"answer {n}",), split=split) for n in range(4)]
        visual = Question(f"{split}_visual", "", "Colour?", answers=("red",), split=split, requires_retrieval=False)
        write_questions(folder, split, [*questions, visual])
    write_json(folder / "dataset.json", {"name": "tiny", "metric": "infoseek", "fingerprint": "f00d"})
    return folder


def predict(path: Path, right: int, *extra: str) -> Path:
    rows = [
        {"data_id": f"{split}_{n}", "prediction": f"Answer {n}." if n < right else "?"}
        for split in SPLITS
        for n in range(3)
    ]
    rows += [{"data_id": key, "prediction": "?"} for key in extra]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def run_alone(*arguments: object) -> subprocess.CompletedProcess[str]:
    """The command in a Python of its own, which finds nothing imported."""
    command = [sys.executable, "-m", "reflectune", "score", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """The command in this process."""

    def start(*arguments: object) -> subprocess.CompletedProcess[str]:
        command, status = ["score", *map(str, arguments)], 0
        monkeypatch.setattr(sys, "argv", command)
        capsys.readouterr()
        try:
            score.score.main()
        except SystemExit as end:
            status = end.code
        return subprocess.CompletedProcess(command, status, *capsys.readouterr())

    return start


def test_a_file_is_scored_officially_and_coverage_is_printed(tmp_path: Path, dataset: Path) -> None:
    path, output = predict(tmp_path / "p.jsonl", 2), tmp_path / "scores.json"
    done = run_alone("--predictions", path, "--dataset", dataset, "--output", output)
    assert done.returncode == 0, done.stderr
    assert "coverage 75.00 %: 8 questions, 2 missing" in done.stdout
    assert "final 66.67, unseen question 66.67, unseen entity 66.67" in done.stdout
    assert "in brackets 95 % intervals over 6 questions" in done.stdout  # none names an entity
    report = json.loads(output.read_text())
    assert report["splits"] == sorted(SPLITS)
    assert report["dataset"]["fingerprint"] == "f00d"
    assert report["runs"][0]["scores"]["overall"]["value"] == pytest.approx(2 / 3)


def test_the_fingerprint_of_a_folder_is_of_the_files_that_are_read(tmp_path: Path, dataset: Path, run: Run) -> None:
    folder = tmp_path / "answers"
    folder.mkdir()
    predict(folder / "split_0.json", 2)
    fingerprints = []
    for _ in range(2):  # the second run finds the first one's scores in the folder
        assert run("--predictions", folder, "--dataset", dataset, "--output", folder / "scores.json").returncode == 0
        fingerprints.append(json.loads((folder / "scores.json").read_text())["runs"][0]["fingerprint"])
    assert fingerprints[0] == fingerprints[1]


def test_strict_counts_what_is_missing(tmp_path: Path, dataset: Path, run: Run) -> None:
    path, output = predict(tmp_path / "p.jsonl", 2), tmp_path / "scores.json"
    done = run("--predictions", path, "--dataset", dataset, "--mode", "strict", "--output", output)
    assert done.returncode == 0, done.stderr
    assert json.loads(output.read_text())["runs"][0]["scores"]["overall"]["value"] == pytest.approx(1 / 2)
    predict(path, 2, "val_unseen_entity_visual")
    visual = run("--predictions", path, "--dataset", dataset, "--mode", "strict")
    assert "1 left out" in visual.stdout
    unknown = run("--predictions", predict(path, 2, "zzz"), "--dataset", dataset, "--mode", "strict")
    assert unknown.returncode == 2
    assert f"{path}:7: no question is known as 'zzz'" in unknown.stderr


def test_the_data_set_says_its_metric_and_the_config_another(tmp_path: Path, run: Run) -> None:
    folder = tmp_path / "evqa"
    lists = [Question("q0", "", "Which?", answers=("red&&blue",), split="test", answer_type="multi_answer")]
    write_questions(folder, "test", lists)
    write_json(folder / "dataset.json", {"fingerprint": "f", "metric": "evqa_exact"})
    path = tmp_path / "p.jsonl"
    path.write_text(json.dumps({"data_id": "q0", "prediction": "blue&&red"}) + "\n")
    done = run("--predictions", path, "--dataset", folder)
    assert "evqa_exact, official mode" in done.stdout
    assert re.search(r"multi-answer +100.00 %", done.stdout)
    assert "`&&` was read as a comma in 1 answers" in done.stdout
    covered = run("--predictions", path, "--dataset", folder, "--metric", "cover_match").stdout
    assert "cover_match, official mode" in covered
    unmatchable = run("--predictions", path, "--dataset", folder, "--metric", "vqa").stdout
    assert "1 questions have answers that no prediction matches in VQA's metric" in unmatchable


def test_a_data_set_of_nothing_but_train_is_scored_on_it(tmp_path: Path, run: Run) -> None:
    write_questions(tmp_path / "own", "train", [Question("q0", "", "Who?", answers=("Ann",), split="train")])
    write_json(tmp_path / "own/dataset.json", {"fingerprint": "f", "metric": "exact_match"})
    (tmp_path / "p.jsonl").write_text(json.dumps({"data_id": "q0", "prediction": "Ann"}) + "\n")
    assert "1 questions, 0 missing" in run("--predictions", tmp_path / "p.jsonl", "--dataset", tmp_path / "own").stdout


def test_answers_of_a_split_that_the_metric_leaves_out_are_known(tmp_path: Path, run: Run) -> None:
    hop = Question("hop", "", "Whose?", answers=("Ann",), split="two_hop", meta={"two_hop": "yes"})
    write_questions(tmp_path / "own", "two_hop", [hop])
    write_questions(tmp_path / "own", "val", [Question("q0", "", "Who?", answers=("Ann",), split="val")])
    write_json(tmp_path / "own/dataset.json", {"fingerprint": "f", "metric": "infoseek"})
    path, rows = tmp_path / "p.jsonl", [json.dumps({"data_id": key, "prediction": "Ann"}) for key in ("hop", "q0")]
    path.write_text("\n".join(rows))
    both = run("--predictions", path, "--dataset", tmp_path / "own", "--mode", "strict")
    assert "1 questions, 0 missing, 0 doubled, 0 of no known question, 1 left out" in both.stdout
    path.write_text(rows[0])
    alone = run("--predictions", path, "--dataset", tmp_path / "own")
    assert "infoseek scores none of its questions" in alone.stderr


def test_two_files_are_compared(tmp_path: Path, dataset: Path, run: Run) -> None:
    first, second = predict(tmp_path / "p.jsonl", 2), predict(tmp_path / "q.jsonl", 1)
    done = run("--predictions", first, "--dataset", dataset, "--against", second)
    assert done.returncode == 0, done.stderr
    assert "difference, first less second: +33.33 points" in done.stdout
    assert "on 6 questions, better on 2, worse on 0" in done.stdout


def test_a_file_of_another_data_set_is_refused(tmp_path: Path, dataset: Path, run: Run) -> None:
    (tmp_path / "p.jsonl").write_text(json.dumps({"data_id": "zzz", "prediction": "Ann"}) + "\n")
    done = run("--predictions", tmp_path / "p.jsonl", "--dataset", dataset)
    assert done.returncode == 2
    assert "none of its 1 ids is a question of the data set" in done.stderr


def test_all_problems_are_told_at_once(tmp_path: Path, run: Run) -> None:
    done = run("--predictions", tmp_path / "none", "--metric", "evqa", "--judge", "pmsr")
    assert done.returncode == 2
    for said in ("`dataset` is needed", "not found", "`bem`", "`llm_model` is needed", "place for the judge's replies"):
        assert said in done.stderr


def test_a_dry_run_says_what_it_would_do(tmp_path: Path, dataset: Path, run: Run) -> None:
    done = run("--predictions", predict(tmp_path / "p.jsonl", 2), "--dataset", dataset, "--dry_run", "true")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("would score")


def verdict(request: str) -> str:
    return "Correct" if "Answer 0" in request else "well…" if "Answer 1" in request else "Incorrect"


def test_a_judge_is_asked_once_for_each_answer_and_never_again(tmp_path, dataset, stub_server, run) -> None:
    server = stub_server(verdict)
    arguments = ["--predictions", predict(tmp_path / "p.jsonl", 2), "--dataset", dataset, "--judge", "mrag"]
    arguments += ["--llm_url", server.url, "--llm_model", "stub", "--output", tmp_path / "scores.json"]
    for _ in range(2):
        done = run(*arguments)
        assert done.returncode == 0, done.stderr
        verdicts = json.loads((tmp_path / "scores.json").read_text())["runs"][0]["judge"]
        assert [verdicts[key] for key in ("correct", "unparsed", "incorrect", "missing")] == [2, 2, 2, 2]
        assert (verdicts["judge"], verdicts["accuracy_strict"], verdicts["accuracy_official"]) == ("stub", 2 / 8, 2 / 4)
        assert [body["temperature"] for _, body in server.requests] == [0] * 3

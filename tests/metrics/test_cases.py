"""Replays what the official programs printed: a small set of pairs that is part of the repository, on every clone, and
the large file of cases where it is next to the repository."""

import importlib.util
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

SCRIPT = Path(__file__).with_name("replay.py")
PAIRS = Path(__file__).with_name("official_pairs.jsonl")
CASES = Path(__file__).parents[3] / "shared" / "cases" / "metrics.json"
ABSENT = f"no {CASES}: the cases are not part of the repo"


def load_replay() -> ModuleType:
    """The script as a module: tests are not a package."""
    spec = importlib.util.spec_from_file_location("replay", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["replay"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


replay = load_replay()


def pairs() -> list[Any]:
    rows = replay.read_cases(PAIRS)
    return [pytest.param(row, id=f"{row['metric']}-{number}") for number, row in enumerate(rows)]


def cases() -> list[Any]:
    if not CASES.exists():
        return [pytest.param(None, marks=pytest.mark.skip(reason=ABSENT))]
    rows = replay.read_cases(CASES)
    return [pytest.param(row, id=f"{row['metric']}-{number}") for number, row in enumerate(rows)]


def run(path: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(SCRIPT), str(path)], capture_output=True, text=True, check=False)


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text(json.dumps(rows))
    return path


@pytest.mark.parametrize("case", pairs())
def test_prints_what_the_official_program_printed_on_every_clone(case: dict[str, Any]) -> None:
    outcome = replay.replay(case)
    assert outcome.status == "passed", outcome.reason


def test_the_pairs_cover_every_official_metric() -> None:
    cases_by_metric = Counter(case["metric"] for case in replay.read_cases(PAIRS))
    assert set(cases_by_metric) == set(replay.METRICS)
    assert sum(cases_by_metric.values()) >= 100
    done = run(PAIRS)
    assert done.returncode == 0
    assert done.stdout.splitlines()[-1] == f"{sum(cases_by_metric.values())} passed, 0 failed"


@pytest.mark.skipif(not CASES.exists(), reason=ABSENT)
def test_the_pairs_are_of_the_large_file() -> None:
    small, large = (
        [{key: case[key] for key in ("metric", "inputs", "expected")} for case in replay.read_cases(path)]
        for path in (PAIRS, CASES)
    )
    assert all(case in large for case in small)


@pytest.mark.parametrize("content", ["", "[]\n", '{"metric": "x", "given": {}}\n'])
def test_a_file_without_pairs_is_an_error(tmp_path: Path, content: str) -> None:
    path = tmp_path / "pairs.jsonl"
    path.write_text(content)
    with pytest.raises(ValueError, match="a pair a line"):
        replay.read_cases(path)


@pytest.mark.parametrize("case", cases())
def test_prints_what_the_official_program_prints(case: dict[str, Any]) -> None:
    outcome = replay.replay(case)
    if outcome.status == "not run":
        pytest.skip(outcome.reason)
    assert outcome.status == "passed", outcome.reason


@pytest.mark.skipif(not CASES.exists(), reason=ABSENT)
def test_the_script_passes_all_but_the_one_that_needs_weights() -> None:
    done = run(CASES)
    lines = done.stdout.splitlines()
    assert done.returncode == 0
    assert lines[-1] == "180 passed, 0 failed"
    assert lines[0].startswith("NOT RUN: case ")
    assert replay.NEEDS_BEM in lines[0]


def test_the_script_names_what_fails_and_what_it_does_not_know(tmp_path: Path) -> None:
    rows = [
        {"metric": "infoseek.normalize_answer", "inputs": {"text": "The  Cat."}, "expected": "cat"},
        {"metric": "infoseek.normalize_answer", "inputs": {"text": "The  Cat."}, "expected": "dog", "note": "wrong"},
        {"metric": "bleu", "inputs": {}, "expected": 0},
        {"metric": replay.NEEDS_BEM, "inputs": {}, "expected": 1.0},
    ]
    done = run(write(tmp_path / "cases.json", rows))
    lines = done.stdout.splitlines()
    assert done.returncode == 1
    assert lines[0] == "FAILED: case 1, infoseek.normalize_answer (wrong): expected 'dog', found 'cat'"
    assert "case 2, bleu: no metric is known as bleu" in lines[1]
    assert lines[-1] == "1 passed, 2 failed"


@pytest.mark.parametrize("content", ["[]", "{}", "[1", ""])
def test_a_file_without_cases_is_an_error(tmp_path: Path, content: str) -> None:
    path = tmp_path / "cases.json"
    path.write_text(content)
    done = run(path)
    assert done.returncode == 1
    assert "passed" not in done.stdout
    assert str(path) in done.stderr


def test_what_raises_is_compared_by_kind_and_words() -> None:
    case = {"metric": "evqa.list_iou", "inputs": {"target": [], "prediction": ["x"]}}
    right = {"error": "ValueError", "message": "Target list should not be empty."}
    assert replay.replay({**case, "expected": right}).status == "passed"
    assert replay.replay({**case, "expected": {**right, "message": "else"}}).status == "failed"
    assert replay.replay({**case, "expected": 0.0}).status == "failed"


def test_a_case_that_needs_bem_is_run_where_bem_is_given() -> None:
    inputs = {"question": "Q?", "reference_list": ["x"], "candidate": "y", "question_type": "automatic"}
    case = {"metric": replay.NEEDS_BEM, "inputs": inputs, "expected": 1.0}
    assert replay.replay(case, lambda *segments: (0.0, 1.0)).status == "passed"
    assert replay.replay(case, lambda *segments: (1.0, 0.0)).status == "failed"

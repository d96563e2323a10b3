"""Pages and the board are made from the JSON files of benchmarks/results."""

import argparse
import json
from pathlib import Path

import pytest

from reflectune.core.durable import write_json

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
HELPERS = {"results", "workload", "gpu_tables", "gpu_training", "whole_training"}
SCRIPTS = sorted(path.stem for path in BENCHMARKS.glob("*.py") if path.stem not in HELPERS)


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_page_is_made_from_its_results(script, name: str) -> None:
    assert (BENCHMARKS / f"{name}.md").read_text(encoding="utf-8") == script(name).BENCHMARK.page()


def test_each_script_has_a_short_page_and_each_page_a_script() -> None:
    assert sorted(path.stem for path in BENCHMARKS.glob("*.md")) == sorted([*SCRIPTS, "board"])
    assert len(SCRIPTS) + len(HELPERS) <= 17
    for path in BENCHMARKS.glob("*.md"):
        lines = path.read_text(encoding="utf-8").splitlines()
        assert len(" ".join(line for line in lines if not line.startswith("|")).split()) <= 250, path.name


def test_each_result_is_on_a_page(script) -> None:
    shown = [name for page in SCRIPTS for name in (page, *(script(page).BENCHMARK.also or {}))]

    assert {path.stem for path in (BENCHMARKS / "results").glob("*.json")} <= set(shown)


def test_the_board_is_made_from_the_results(script) -> None:
    board = script("results").board()

    assert (BENCHMARKS / "board.md").read_text(encoding="utf-8") == board
    assert board.count("\n") <= 6 + 20


def test_a_quick_start_that_was_cut_off_after_its_evaluation_is_run_again(script, tmp_path) -> None:
    quickstart = script("quickstart")
    assert not quickstart.is_finished(tmp_path)
    write_json(tmp_path / "metrics.json", {"minutes": {"evaluate": 1.0}})
    assert not quickstart.is_finished(tmp_path)
    write_json(tmp_path / "metrics.json", {"minutes": {"train": 2.0, "evaluate": 1.0}})
    assert quickstart.is_finished(tmp_path)


def test_a_record_names_what_its_figures_depend_on(script, tmp_path, monkeypatch) -> None:
    results = script("results")
    monkeypatch.setattr("sys.argv", ["x/trial.py", "--limit", "5", "--results", str(tmp_path), "--commit=abc"])
    trial = results.Benchmark(
        "trial", "A trial", "Text.", lambda f: [f"{f['n']} rows"], lambda f: [("rows", f"{f['n']}", "none")]
    )
    path = trial.write({"n": 7}, argparse.Namespace(results=tmp_path, commit="abc"))

    record = json.loads(path.read_text(encoding="utf-8"))
    assert record["command"] == "python benchmarks/trial.py --limit 5"
    assert (record["commit"], record["figures"]) == ("abc", {"n": 7})
    assert record["machine"]
    assert {"Python", "torch", "transformers"} <= set(record["versions"])
    page = trial.page(tmp_path)
    assert page.startswith("# A trial\n\nText.\n\n`python benchmarks/trial.py --limit 5`: ")
    assert page.endswith("\n\n7 rows\n")
    assert "| rows | 7 | none |" in results.board(tmp_path)


def test_sections_of_one_commit_are_joined_and_other_figures_are_replaced(script, tmp_path, monkeypatch) -> None:
    trial = script("results").Benchmark("trial", "A trial", "Text.", lambda f: [], joined=True)

    def written(commit: str, **figures: int) -> dict:
        monkeypatch.setattr("sys.argv", ["trial.py", "--sections", *figures])
        path = trial.write(figures, argparse.Namespace(results=tmp_path, commit=commit))
        return json.loads(path.read_text(encoding="utf-8"))

    written("abc", n=7)
    record = written("abc", m=8)
    assert record["figures"] == {"n": 7, "m": 8}
    assert record["command"] == "python benchmarks/trial.py --sections n && python benchmarks/trial.py --sections m"
    assert written("abc", n=9)["figures"] == {"n": 9, "m": 8}
    assert written("abd", m=1)["figures"] == {"m": 1}

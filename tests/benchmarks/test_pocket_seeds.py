"""More seeds of pocket's fine-tunings: which commands train and evaluate them, and what a mean over seeds says."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from reflectune.core.types import Question
from reflectune.inference.scoring.scores import Measure

ROOT = Path(__file__).parents[2]


@pytest.fixture
def pocket_seeds(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """`benchmarks/pocket_seeds.py`, imported as a script is: beside what it imports."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("pocket_seeds")


def option(command: list[str], name: str) -> str:
    return command[command.index(name) + 1]


def test_each_seed_is_trained_and_evaluated_in_folders_of_its_own(pocket_seeds: ModuleType) -> None:
    commands, needs, minutes = pocket_seeds.stages_of([1, 2])
    assert set(commands) <= set(minutes)
    for seed in ("1", "2"):
        trained = {name: commands[f"{name}_{seed}"] for name in ("mr2ag", "plain_tuned")}
        assert {option(command, "--seed") for command in trained.values()} == {seed}
        evaluate = commands[f"evaluate_{seed}"]
        assert option(evaluate, "--model") == option(trained["mr2ag"], "--output_dir")
        assert option(evaluate, "--plain_model") == option(trained["plain_tuned"], "--output_dir")
        assert set(needs[f"evaluate_{seed}"]) == {"index", f"mr2ag_{seed}", f"plain_tuned_{seed}"}
    folders = [option(command, "--output") for name, command in commands.items() if name.startswith("evaluate")]
    assert len(set(folders)) == 3


def test_what_is_shipped_is_asked_the_same_questions(pocket_seeds: ModuleType) -> None:
    commands = pocket_seeds.stages_of([1])[0]
    assert option(commands["evaluate"], "--model") == "pocket/mr2ag"
    assert option(commands["evaluate"], "--limit") == option(commands["evaluate_1"], "--limit")


def test_on_a_device_models_are_trained_and_asked_there_and_nothing_else_is(pocket_seeds: ModuleType) -> None:
    commands = pocket_seeds.stages_of([1], limit=150, device="cuda")[0]
    there = {name for name, command in commands.items() if "cuda" in command}
    assert there == {"evaluate", "evaluate_1", "mr2ag_1", "plain_tuned_1"}
    assert {option(commands[name], "--device") for name in there} == {"cuda"}
    assert {option(commands[name], "--limit") for name in ("evaluate", "evaluate_1")} == {"150"}


def seed(pocket_seeds: ModuleType, mr2ag: list[float], article: list[float], passages: list[float]) -> Any:
    zeros = [0.0] * len(mr2ag)
    worth = dict.fromkeys(pocket_seeds.TUNED, zeros)
    worth |= {"mr2ag": mr2ag, "naive_rag_article_tuned": article, "naive_rag_passages_tuned": passages}
    metrics: dict[str, Any] = {}
    for *outer, name in pocket_seeds.DECISIONS.values():
        part = metrics
        for each in outer:
            part = part.setdefault(each, {})
        part[name] = {"value": sum(mr2ag) / len(mr2ag)}
    return pocket_seeds.Seed(metrics, worth)


def test_a_mean_is_of_each_questions_answers_and_leads_the_best_mean(pocket_seeds: ModuleType) -> None:
    questions = [
        Question(id=str(n), image="", text="?", answers=("a",), split=split, requires_retrieval=True)
        for n, split in enumerate(["val_unseen_question"] * 2 + ["val_unseen_entity"] * 2)
    ]
    seeds = {
        "shipped": seed(pocket_seeds, [1, 1, 1, 1], article=[1, 0, 1, 0], passages=[0, 0, 0, 0]),
        "seed 1": seed(pocket_seeds, [1, 0, 1, 0], article=[0, 0, 0, 0], passages=[1, 0, 1, 0]),
    }
    lines = pocket_seeds.leads(seeds, questions, Measure("infoseek"))
    assert lines[2].startswith("| shipped | 0.0 | 50.0 | 0.0 | 0.0 | 100.0 | 50.0 [")
    assert lines[3].startswith("| seed 1 | 0.0 | 0.0 | 0.0 | 50.0 | 50.0 | 0.0 [0.0, 0.0]")
    assert lines[4].startswith("| mean of 2 | 0.0 | 25.0 | 0.0 | 25.0 | 75.0 | 50.0 [")
    assert pocket_seeds.decisions(seeds)[2].endswith("| 100.0 | 50.0 | 75.0 ± 35.4 |")

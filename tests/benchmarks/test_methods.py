"""The page of methods: its tables are read from what was measured, and its QLoRA is held against the quick start's
baselines."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def methods(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """`benchmarks/methods.py`, imported as a script is."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("methods")


def metrics_of(methods: ModuleType, value: float) -> dict[str, Any]:
    """Metrics in which every score that is shown has one value."""
    metrics: dict[str, Any] = {"best_baseline": "naive_rag_passages"}
    for path in methods.SCORES.values():
        place = metrics
        for key in path[:-1]:
            place = place.setdefault(key, {})
        place[path[-1]] = {"value": value, "low": value - 0.02, "high": value + 0.02, "n": 291}
    return metrics


def test_the_page_has_costs_of_every_method_and_scores_of_two(methods: ModuleType) -> None:
    columns = [(family, method) for family in methods.FAMILIES for method in methods.METHODS]
    taken = {column: methods.Cost(1000 * i, [0.02, 0.01], 1.5, [6.94, 17.87]) for i, column in enumerate(columns)}
    scores = {"full": metrics_of(methods, 0.9), "qlora": metrics_of(methods, -0.05)}

    text = "\n".join(methods.page(taken, scores, 60))

    assert "|  | llava full | llava lora | llava qlora | qwen2_vl full | qwen2_vl lora | qwen2_vl qlora |" in text
    assert "60 questions each of val_unseen_question" in text
    assert "| parameters that train | 0 | 1,000 | 2,000 | 3,000 | 4,000 | 5,000 |" in text
    assert "| CPU ms a question, later epochs | 10.0 |" in text
    assert "| checkpoint to resume from, MB | 17.87 |" in text
    lead = "mr2ag − best baseline at equal depth, paired"
    assert f"| {lead} | 90.0 (88.0 to 92.0, n = 291) | -5.0 (-7.0 to -3.0, n = 291) |" in text
    assert "| the best baseline | naive_rag_passages | naive_rag_passages |" in text


def test_both_methods_stand_against_the_same_baselines(
    methods: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answers of the baselines are taken over, and none of a model that was fine-tuned otherwise."""
    full, qlora = tmp_path / "full", tmp_path / "qlora"
    (full / "traces").mkdir(parents=True)
    names = ["mr2ag", "mr2ag_oracle", "naive_rag_articles", "naive_rag_articles_tuned", "relevance", "retrieval"]
    for name in names:
        (full / "traces" / f"{name}.jsonl").write_text(name)
    commands: list[list[str]] = []

    def run_stages(folder: Path, stages: dict[str, list[str]]) -> None:
        commands.extend(stages.values())
        (folder / "metrics.json").write_text("{}")

    monkeypatch.setattr(methods, "run_stages", run_stages)

    methods.train_qlora(full, qlora)
    methods.scored(full, full, None)
    methods.scored(full, qlora, 60)

    assert sorted(path.stem for path in (full / "scores-all/traces").iterdir()) == names
    assert sorted(path.stem for path in (qlora / "scores-60/traces").iterdir()) == [*names[2:4], "retrieval"]
    train, evaluate_full, evaluate = ([*words, ""] for words in commands)
    for words in (train, evaluate_full, evaluate):
        assert Path(words[words.index("--config") + 1]).is_file()
    assert evaluate[evaluate.index("--plain_model") + 1] == str(full / "plain_checkpoint")
    assert evaluate[evaluate.index("--model") + 1] == train[train.index("--output_dir") + 1]
    assert evaluate[evaluate.index("--limit") + 1] == "60"
    assert "--limit" not in evaluate_full


def test_the_size_of_a_checkpoint_is_of_its_own_files(methods: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"0" * 1_500_000)
    (tmp_path / "checkpoint-2").mkdir()
    (tmp_path / "checkpoint-2/optimizer.pt").write_bytes(b"0" * 3_000_000)

    assert methods.megabytes(tmp_path) == pytest.approx(1.5)
    assert methods.megabytes(tmp_path / "checkpoint-2") == pytest.approx(3.0)

"""A paper's table is filled from what steps wrote; what isn't measured is a dash, and a rehearsal shows no paper."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from reflectune.inference.reproduction.config import ReproduceConfig
from reflectune.inference.reproduction.tables import number, page

Config = Callable[..., ReproduceConfig]
TABLES = {
    "Table 6": {
        "paper": "arXiv 2411.15041, Table 6",
        "note": "A note.",
        "columns": {"overall": "overall"},
        "rows": {"5": {"step": "evaluate", "pipeline": "mr2ag"}, "ours": {"step": "sweep", "at": {"top_n": 3}}},
    }
}
STEPS = {
    "evaluate": {"module": "inference.evaluate", "set": {"output": "runs/e"}},
    "sweep": {"module": "inference.sweep", "set": {"output": "runs/s"}},
}


def test_a_table_has_what_was_measured_beside_what_the_paper_printed(config: Config, data: Path) -> None:
    made = config(steps=STEPS, tables=TABLES, changes=[])
    assert made.problems() == []
    assert page(TABLES, made.all_steps(), data, pilot=False).splitlines() == [
        "# Table 6",
        "",
        "A note.",
        "",
        "|  | overall | the paper's: overall |",
        "| --- | --: | --: |",
        "| 5 | – | 40.2 |",
        "| ours | – |  |",
    ]

    (data / "runs/e").mkdir(parents=True)
    (data / "runs/e/metrics.json").write_text(json.dumps({"pipelines": {"mr2ag": {"overall": {"value": 0.4321}}}}))
    assert "| 5 | 43.2 | 40.2 |" in page(TABLES, made.all_steps(), data, pilot=False)


def test_a_rehearsals_numbers_never_stand_beside_a_papers(config: Config, data: Path) -> None:
    text = page(TABLES, config(steps=STEPS, tables=TABLES, changes=[]).all_steps(), data, pilot=True)

    assert text.startswith("**A rehearsal**")
    assert "40.2" not in text


SWEEP = {
    "start": {"k": "auto", "mct": "merge"},
    "points": [
        {"settings": {"k": "auto", "mct": "merge"}, "accuracy": {"value": 0.5}, "unseen_entity": {"value": 0.25}},
        {"settings": {"k": 5, "mct": "merge"}, "accuracy": {"value": 0.75}},
        {"settings": {"k": "auto", "mct": "none"}, "accuracy": None},
    ],
}


@pytest.mark.parametrize(
    ("at", "column", "value"),
    [
        ({}, "overall", 0.5),
        ({}, "unseen_entity", 0.25),
        ({"k": 5}, "overall", 0.75),
        ({"mct": "none"}, "overall", None),
        ({"k": 7}, "overall", None),
    ],
    ids=["start", "column", "point", "unscored", "no_point"],
)
def test_a_point_of_a_sweep_is_found_by_its_settings(at: dict[str, object], column: str, value: float | None) -> None:
    assert number(SWEEP, {"at": at}, column) == value


def test_a_recall_is_over_the_questions_of_all_splits() -> None:
    splits = {
        name: {"weights": {"0.5": {"r": {"value": value, "n": n}}}} for name, value, n in (("a", 1, 1), ("b", 0, 3))
    }

    assert number(splits, {"title_weight": 0.5}, "r") == 0.25
    assert number(splits, {"title_weight": 1}, "r") is None
    assert number(None, {"title_weight": 1}, "r") is None

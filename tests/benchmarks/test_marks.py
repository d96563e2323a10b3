"""The table of marks: what counts as reached, and that a tie is called one."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from reflectune.inference.scoring.paper_numbers import MR2AG_5

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "marks.py"


@pytest.fixture
def marks(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """`benchmarks/marks.py`, imported as a script is: beside what it imports."""
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    return importlib.import_module("marks")


def run(full: float, others: float, low: float, high: float) -> dict[str, Any]:
    """metrics.json of a run where the full product scores `full`, with these ends of its lead over every other."""
    scores = {name: {"overall": {"value": full if name == "full" else others}} for name in MR2AG_5.rows}
    leads = {name: {"value": full - others, "low": low, "high": high} for name in scores if name != "full"}
    return {
        "rankings": {
            "scores": scores,
            "paper_ranks": {"overall": MR2AG_5.ranks()},
            "pairs_ordered_as_in_paper": {"overall": 0.5},
            "full_product_leads": {"overall": leads},
        }
    }


def last_row(lines: list[str]) -> str:
    (line,) = [line for line in lines if line.startswith("| the full product is the best |")]
    return line


def test_the_full_product_that_ties_is_not_called_the_best(marks) -> None:
    tie = run(0.9, 0.9, 0.0, 0.0)
    assert " yes " not in last_row(marks.rankings({("llava", "full"): [tie]}))
    assert "| ties with random, ans, ret, rel, " in last_row(marks.rankings({("llava", "full"): [tie]}))
    noisy = run(0.92, 0.9, -0.01, 0.05)
    assert "ties with" in last_row(marks.rankings({("llava", "full"): [noisy]}))


def test_it_is_called_the_best_where_it_is_ahead_in_every_seed(marks) -> None:
    ahead, tie = run(0.92, 0.9, 0.01, 0.03), run(0.92, 0.9, 0.0, 0.03)
    assert "| yes |" in last_row(marks.rankings({("llava", "full"): [ahead, ahead]}))
    assert "ties with" in last_row(marks.rankings({("llava", "full"): [ahead, tie]}))
    assert "| behind random, " in last_row(marks.rankings({("llava", "full"): [run(0.8, 0.9, -0.2, -0.1)]}))


def test_the_papers_rankings_are_ranks_beside_ours(marks) -> None:
    lines = marks.rankings({("llava", "full"): [run(0.92, 0.9, 0.01, 0.03)]})
    assert "| full | 1 | 92.0 | 1 |" in lines
    assert "| random | 8 | 90.0 | 2 |" in lines
    text = "\n".join(lines)
    assert not [value for row in MR2AG_5.rows.values() for value in row if f"{value:.1f}" in text]
    assert len({line.count("|") for line in lines}) == 1


def test_a_lead_whose_interval_touches_0_does_not_reach_its_mark(marks) -> None:
    (mark,) = [mark for mark in marks.MARKS if mark.name == "the same, lower end of its interval"]
    assert not mark.holds(0.0)
    assert mark.holds(0.001)
    assert mark.wanted() == "> 0"

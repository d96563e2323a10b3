"""The page and the plot of a comparison, and the command that writes them."""

import itertools
import json
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reflectune.inference.compare import compare
from reflectune.inference.report.comparison import compared
from reflectune.inference.report.comparison_page import page, plot, spread_out
from reflectune.inference.scoring.trajectories import COSTS


def score(value: float) -> dict[str, float]:
    return {"value": value, "low": value - 0.1, "high": value + 0.1, "n": 10}


def metrics(scores: dict[str, float], **more: Any) -> dict[str, Any]:
    """Return the parts of metrics.json that a comparison reads; every pipeline but `naive` leads by its difference."""
    return {
        "metric": {"name": "infoseek", "caption": "A score", "columns": {"overall": "overall", "visual": "visual"}},
        "pipelines": {name: {"overall": score(value), "visual": None} for name, value in scores.items()},
        "best_baseline": "naive",
        "comparisons": {
            f"{name} - best_baseline": score(scores[name] - scores["naive"]) for name in scores if name != "naive"
        },
        "costs": {name: dict.fromkeys(COSTS, 1000.0 * (i + 1)) for i, name in enumerate(scores)},
        "budgets": {},
        **more,
    }


FIRST, SECOND = metrics({"naive": 0.5, "pmsr": 0.6}), metrics({"naive": 0.3, "pmsr": 0.6})


def written(**evaluations: dict[str, Any]) -> str:
    return page(compared(evaluations))


def test_a_row_has_score_lead_standing_columns_and_costs() -> None:
    text = written(one=FIRST, two=SECOND)
    assert "one, two: 10, 10 questions. A score." in text
    costs = " | ".join(["2,000"] * len(COSTS))
    ties = "ties (1 ahead, 0 behind of 2)"
    assert f"| pmsr | 60.0 (60.0 to 60.0) | +20.0 (+10.0 to +30.0) | {ties} | – | {costs} |" in text
    assert "| naive | 40.0 (30.0 to 50.0) | – | – | – | 1,000 |" in text
    assert "- Front by tokens read: naive, pmsr." in text


def test_rows_are_ordered_by_score_and_oracles_are_last() -> None:
    text = written(one=metrics({"naive": 0.5, "pmsr": 0.6, "oracle_passage": 0.9}))
    rows = [line.split(" | ")[0] for line in text.splitlines() if line.startswith("| ")]
    assert rows == ["| pipeline", "| pmsr", "| naive", "| oracle_passage"]


def test_unequal_rows_are_named() -> None:
    budget = {"iterations": 2, "max_record_tokens": 48}
    text = written(
        one={**FIRST, "questions": "a", "budgets": {"pmsr": budget}}, two=metrics({"naive": 0.3}, questions="b")
    )
    assert "not comparable with the others: pmsr (1 of 2 sets)." in text
    assert "- Leads not at equal depth, since keys of their own set how much they read: pmsr." in text
    assert "- Budget of pmsr (its paper's): `iterations` 2 (4), `max_record_tokens` 48 (not given)." in text
    equal = written(one=metrics({"naive": 0.5, "mr2ag": 0.6}))
    assert not any(word in equal for word in ("Budget", "not at equal depth", "not comparable"))


@pytest.mark.parametrize("cost", COSTS)
def test_the_plot_names_every_pipeline_that_counts_the_cost(cost: str) -> None:
    content = metrics({"naive": 0.5, "pmsr": 0.6, "<b>$x$": 0.1, "free": 0.2, "uncounted": 0.4})
    content["costs"]["free"] = dict.fromkeys(COSTS, 0.0)
    content["costs"]["uncounted"] = dict.fromkeys(COSTS)
    drawing = plot(compared({"one": content}), cost)
    texts = {text.text for text in ElementTree.fromstring(drawing).iter("{http://www.w3.org/2000/svg}text")}
    assert texts >= {"naive", "pmsr", "<b>$x$", "free"}
    assert "uncounted" not in texts
    assert drawing == plot(compared({"one": content}), cost)


@given(st.lists(st.floats(0, 1), max_size=30), st.floats(0.01, 0.2))
def test_names_of_the_plot_keep_their_distance_and_their_order(heights: list[float], gap: float) -> None:
    placed = spread_out(sorted(heights), gap)
    least = min(gap, 1 / max(1, len(heights) - 1))
    assert all(upper - lower >= least - 1e-9 for lower, upper in itertools.pairwise(placed))
    assert all(-1e-9 <= height <= 1 for height in placed)


def test_the_command_writes_a_page_a_plot_and_the_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "one/metrics.json").write_text(json.dumps(FIRST))
    argv = ["--evaluations", str(tmp_path / "one"), "--output", str(tmp_path / "out")]
    compare.main([*argv, "--dry_run"])
    assert not (tmp_path / "out/compare.md").exists()
    compare.main(argv)
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"compare.json", "compare.md", "compare.svg"}
    assert "![Score against cost](compare.svg)" in capsys.readouterr().out
    assert (
        json.loads((tmp_path / "out/compare.json").read_text())["pipelines"]["pmsr"]["standing"]
        == "ties (0 ahead, 0 behind of 1)"
    )


def test_without_matplotlib_the_table_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    text = written(one=FIRST)
    assert "| pmsr | 60.0" in text
    assert "No plot: charts are drawn by matplotlib: pip install 'reflectune[report]'." in text

"""Evaluations in one table: means, leads, the front, and inputs that are refused."""

from pathlib import Path
from typing import Any

import pytest

from reflectune.core.errors import UserError
from reflectune.inference.compare import CompareConfig
from reflectune.inference.report.comparison import compared, standing
from reflectune.inference.scoring.trajectories import COSTS


def score(value: float) -> dict[str, float]:
    return {"value": value, "low": value - 0.1, "high": value + 0.1, "n": 10}


def metrics(scores: dict[str, float], read: dict[str, float | None], metric: str = "infoseek") -> dict[str, Any]:
    """Return the parts of metrics.json that a comparison reads: overall scores, and tokens read per question."""
    return {
        "metric": {"name": metric, "caption": "A score", "columns": {"overall": "overall"}},
        "pipelines": {
            **{name: {"overall": score(value), "by_type": {}} for name, value in scores.items()},
            "best_baseline": {"overall": score(scores["naive"]), "by_type": {}},
        },
        "best_baseline": "naive",
        "comparisons": {"pmsr - best_baseline": {**score(scores["pmsr"] - scores["naive"]), "of": "overall"}},
        "costs": {name: {**dict.fromkeys(COSTS, 1.0), "read": tokens} for name, tokens in read.items()},
        "budgets": {},
        "questions": "a",
    }


FIRST = metrics({"naive": 0.5, "pmsr": 0.6, "slow": 0.55}, {"naive": 100.0, "pmsr": 1000.0, "slow": 2000.0})
SECOND = metrics({"naive": 0.3, "pmsr": 0.6, "slow": 0.55}, {"naive": 300.0, "pmsr": 3000.0, "slow": None})


def test_scores_and_costs_are_means_over_evaluations() -> None:
    record = compared({"one": FIRST, "two": SECOND})
    assert list(record["pipelines"]) == ["naive", "pmsr", "slow"]
    assert [each["value"] for each in record["pipelines"]["naive"]["score"]] == [0.5, 0.3]
    assert record["pipelines"]["naive"]["costs"]["read"] == 200.0
    assert record["pipelines"]["slow"]["costs"]["read"] is None  # one of them doesn't count it
    assert record["pipelines"]["slow"]["lead"] == [None, None]


def test_a_pipeline_on_the_front_is_neither_beaten_nor_undercut() -> None:
    rows = compared({"one": FIRST})["pipelines"]
    assert {name: row["on_front"]["read"] for name, row in rows.items()} == {"naive": True, "pmsr": True, "slow": False}
    equal = compared({"one": FIRST})["pipelines"]  # at equal cost the better one alone
    assert [name for name, row in equal.items() if row["on_front"]["calls"]] == ["pmsr"]
    assert compared({"two": SECOND})["pipelines"]["slow"]["on_front"]["read"] is None


def test_an_oracle_is_on_no_front_and_keeps_nobody_off_it() -> None:
    content = metrics(
        {"naive": 0.5, "pmsr": 0.6, "oracle_passage": 0.9}, {"naive": 9.0, "pmsr": 99.0, "oracle_passage": 1.0}
    )
    rows = compared({"one": content})["pipelines"]
    assert [row["on_front"]["read"] for row in rows.values()] == [True, True, None]


def test_a_pipeline_that_was_asked_a_part_of_the_questions_is_on_no_front() -> None:
    first, second = FIRST, {**SECOND, "questions": "b", "comparisons": {}}
    second["pipelines"] = {name: table for name, table in SECOND["pipelines"].items() if name != "pmsr"}
    second["costs"] = {name: costs for name, costs in SECOND["costs"].items() if name != "pmsr"}
    rows = compared({"one": first, "two": second})["pipelines"]
    assert {name: row["unasked"] for name, row in rows.items()} == {"naive": 0, "pmsr": 1, "slow": 0}
    fronts = {name: row["on_front"]["calls"] for name, row in rows.items()}
    assert fronts == {"naive": False, "pmsr": None, "slow": True}
    same_questions = compared({"one": first, "two": {**second, "questions": "a"}})["pipelines"]["pmsr"]
    assert same_questions["unasked"] == 0
    assert same_questions["on_front"]["calls"]


def test_irrelevant_passages_make_a_pipeline_of_their_own() -> None:
    record = compared({"clean": FIRST, "noisy": {**SECOND, "noise": {"pmsr": 4}}})
    assert list(record["pipelines"]) == ["naive", "pmsr", "slow", "pmsr, noise 4"]
    assert [len(row["score"]) for row in record["pipelines"].values()] == [2, 1, 2, 1]
    assert record["pipelines"]["pmsr, noise 4"]["lead"][0]["value"] == pytest.approx(0.3)


def test_budgets_of_all_evaluations_stand_together() -> None:
    budgets = [{"pmsr": {"iterations": count}} for count in (4, 2)]
    record = compared({"one": {**FIRST, "budgets": budgets[0]}, "two": {**SECOND, "budgets": budgets[1]}})
    assert record["pipelines"]["pmsr"]["budget"] == {"iterations": [2, 4]}
    assert record["pipelines"]["naive"]["budget"] == {}


def test_different_metrics_are_not_compared() -> None:
    other = metrics({"naive": 0.5, "pmsr": 0.6}, {"naive": 1.0, "pmsr": 2.0}, metric="vqa")
    with pytest.raises(UserError, match="scored by infoseek and vqa"):
        compared({"one": FIRST, "two": other})


@pytest.mark.parametrize(
    ("leads", "expected"),
    [
        ([], ""),
        ([None], ""),
        ([0.2, 0.3], "ahead in 2 of 2"),
        ([-0.2, None], "behind in 1 of 1"),
        ([0.2, 0.05], "ties (1 ahead, 0 behind of 2)"),
    ],
    ids=["nothing", "unknown", "ahead", "behind", "a tie"],
)
def test_a_pipeline_is_ahead_where_every_interval_is(leads: list[float | None], expected: str) -> None:
    assert standing([None if lead is None else score(lead) for lead in leads]) == expected


def test_all_problems_are_named_at_once(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    problems = CompareConfig(evaluations=[str(tmp_path / "empty"), "nowhere"]).problems()
    assert sum("has no metrics.json" in problem for problem in problems) == 2
    assert any("`output` is needed" in problem for problem in problems)
    assert any("`evaluations` is needed" in problem for problem in CompareConfig(output="o").problems())

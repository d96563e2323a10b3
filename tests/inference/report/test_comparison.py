"""Evaluations in one table: means, leads, the front, inputs that are refused, the page and its plot."""

import itertools
import json
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reflectune.core.errors import UserError
from reflectune.inference.compare import CompareConfig, compare
from reflectune.inference.report.comparison import compared, flips, read_metrics, standing, with_folder_names
from reflectune.inference.report.comparison_page import page, plot, spread_out
from reflectune.inference.scoring.seeds import joined
from reflectune.inference.scoring.trajectories import COSTS


def score(value: float) -> dict[str, float]:
    return {"value": value, "low": value - 0.1, "high": value + 0.1, "n": 10}


def metrics(scores: dict[str, float], read: dict[str, float | None] | None = None, **more: Any) -> dict[str, Any]:
    """Return the parts of metrics.json that a comparison reads; without tokens read, later pipelines cost more."""
    table = {name: {"overall": score(value), "visual": None, "by_type": {}} for name, value in scores.items()}
    costs = {name: dict.fromkeys(COSTS, 1000.0 * (i + 1)) for i, name in enumerate(scores)}
    costs |= {name: {**dict.fromkeys(COSTS, 1.0), "read": tokens} for name, tokens in (read or {}).items()}
    leading = [name for name in scores if name in ("pmsr", "mr2ag")]
    leads = {f"{name} - best_baseline": score(scores[name] - scores["naive"]) for name in leading}
    return {
        "metric": {
            "name": "infoseek",
            "caption": "A score",
            "columns": {"overall": "overall", "visual": "visual"},
            "bem": None,
        },
        "questions": "",
        "names": {},
        "noise": {},
        "pipelines": {**table, "best_baseline": table["naive"]},
        "best_baseline": "naive",
        "comparisons": leads,
        "costs": costs,
        "budgets": {},
        **more,
    }


FIRST = metrics(
    {"naive": 0.5, "pmsr": 0.6, "slow": 0.55}, {"naive": 100.0, "pmsr": 1000.0, "slow": 2000.0}, questions="a"
)
SECOND = metrics(
    {"naive": 0.3, "pmsr": 0.6, "slow": 0.55}, {"naive": 300.0, "pmsr": 3000.0, "slow": None}, questions="a"
)


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
    assert [name for name, row in rows.items() if row["on_front"]["calls"]] == ["pmsr"]  # the best at equal cost
    assert compared({"two": SECOND})["pipelines"]["slow"]["on_front"]["read"] is None


def test_an_oracle_is_on_no_front_and_keeps_nobody_off_it() -> None:
    costs = {"naive": 9.0, "pmsr": 99.0, "oracle_passage": 1.0}
    content = metrics({"naive": 0.5, "pmsr": 0.6, "oracle_passage": 0.9}, costs)
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


def test_different_numbers_of_questions_are_listed() -> None:
    fewer = json.loads(json.dumps({**SECOND, "questions": "b"}).replace('"n": 10', '"n": 4'))
    line = "- The evaluations have different numbers of questions and count equally in the means: one 10, two 4."
    assert line in page(compared({"one": FIRST, "two": fewer})).splitlines()
    assert "different numbers of questions" not in page(compared({"one": FIRST, "two": SECOND}))


def test_different_metrics_are_not_compared() -> None:
    other = {**FIRST, "metric": {"name": "vqa", "caption": "A score", "columns": {"overall": "overall"}}}
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
    seeds = CompareConfig(evaluations=[str(tmp_path / "empty")], seeds=True, output="o").problems()
    assert any("has no scored.json" in problem for problem in seeds)
    against = CompareConfig(evaluations=[str(tmp_path / "empty")], against="naive", output="o")
    assert sum("has no" in problem for problem in against.problems()) == 2
    (tmp_path / "empty/sweep.json").write_text("{}")
    missing, alone = against.problems()
    assert "has no scored.json" in missing
    assert alone == "`evaluations`: give at least one that `evaluate` wrote"
    assert any("`evaluations` is needed" in problem for problem in CompareConfig(output="o").problems())


# The page.

ONE, TWO = metrics({"naive": 0.5, "pmsr": 0.6}), metrics({"naive": 0.3, "pmsr": 0.6})


def written(**evaluations: dict[str, Any]) -> str:
    return page(compared(evaluations))


def test_a_row_has_score_lead_standing_columns_and_costs() -> None:
    text = written(one=ONE, two=TWO)
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
    one = {**ONE, "questions": "a", "budgets": {"pmsr": budget}}
    text = written(one=one, two=metrics({"naive": 0.3}, questions="b"))
    assert "not comparable with the others: pmsr (1 of 2 sets)." in text
    assert "- Leads not at equal depth, since these pipelines set their own depth: pmsr." in text
    assert "- Budget of pmsr (its paper's): `iterations` 2 (4), `max_record_tokens` 48 (not given)." in text
    equal = written(one=metrics({"naive": 0.5, "mr2ag": 0.6}))
    assert not any(word in equal for word in ("Budget", "not at equal depth", "not comparable"))


def test_the_plot_names_every_pipeline_that_counts_the_cost() -> None:
    content = metrics({"naive": 0.5, "pmsr": 0.6, "<b>$x$": 0.1, "free": 0.2, "uncounted": 0.4})
    content["costs"]["free"] = dict.fromkeys(COSTS, 0.0)
    content["costs"]["uncounted"] = dict.fromkeys(COSTS)
    drawing = plot(compared({"one": content}))
    texts = {text.text for text in ElementTree.fromstring(drawing).iter("{http://www.w3.org/2000/svg}text")}
    assert texts >= {"naive", "pmsr", "<b>$x$", "free"}
    assert "uncounted" not in texts
    assert drawing == plot(compared({"one": content}))


@given(st.lists(st.floats(0, 1), max_size=30), st.floats(0.01, 0.2))
def test_names_of_the_plot_keep_their_distance_and_their_order(heights: list[float], gap: float) -> None:
    placed = spread_out(sorted(heights), gap)
    least = min(gap, 1 / max(1, len(heights) - 1))
    assert all(upper - lower >= least - 1e-9 for lower, upper in itertools.pairwise(placed))
    assert all(-1e-9 <= height <= 1 for height in placed)


def test_the_command_writes_a_page_a_plot_and_the_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "one/metrics.json").write_text(json.dumps(ONE))
    argv = ["--evaluations", str(tmp_path / "one"), "--output", str(tmp_path / "out")]
    compare.main([*argv, "--dry_run"])
    assert not (tmp_path / "out/compare.md").exists()
    compare.main(argv)
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"compare.json", "compare.md", "compare.svg"}
    assert "![Score against cost](compare.svg)" in capsys.readouterr().out
    rows = [{"id": key, "split": "val", "entities": [key], "groups": {}} for key in "ab"]
    record = {"metric": "vqa", "questions": rows, "correct": {"pmsr": [1, 1], "naive": [0, 1]}}
    (tmp_path / "one/scored.json").write_text(json.dumps(record))
    seeds = ["--evaluations", *[str(tmp_path / "one")] * 2, "--seeds", "--against", "naive"]
    compare.main([*seeds, "--output", str(tmp_path / "seeds")])
    assert "| pmsr | 100.0 (100.0 to 100.0) | +50.0 (" in (tmp_path / "seeds/compare.md").read_text()
    record = json.loads((tmp_path / "out/compare.json").read_text())
    assert record["pipelines"]["pmsr"]["standing"] == "ties (0 ahead, 0 behind of 1)"


def test_leads_over_a_pipeline_of_another_evaluation_and_of_fitted_decisions(tmp_path: Path) -> None:
    """Two evaluations ran `pmsr`, one of them the baseline; a sweep decided again. Each row has its own name."""
    rows = [{"id": key, "split": "val", "entities": [key], "groups": {"style=flag": key}} for key in "ab"]
    rest = [{**row, "groups": {}} for row in rows]  # a sweep knows no groups
    correct = {
        "one": (rows, {"pmsr": [1, 1], "naive": [0, 1]}, metrics({"naive": 0.5, "pmsr": 1.0})),
        "two": (rows, {"pmsr": [0, 0]}, metrics({"naive": 0.5, "pmsr": 0.0})),
        "fit": (rest[::-1], {"mr2ag_fitted": [0, 1]}, None),  # in another order
    }
    for name, (asked, answers, content) in correct.items():
        (tmp_path / name).mkdir()
        record = {"metric": "vqa", "questions": asked, "correct": answers}
        (tmp_path / name / "scored.json").write_text(json.dumps(record))
        (tmp_path / name / ("metrics.json" if content else "sweep.json")).write_text(json.dumps(content or {}))
    folders = [str(tmp_path / name) for name in correct]
    compare.main(["--evaluations", *folders, "--against", "naive", "--output", str(tmp_path / "out")])
    found = json.loads((tmp_path / "out/compare.json").read_text())["leads"]
    one, two = (f"pmsr ({folder})" for folder in folders[:2])
    assert {name: row["lead"] and row["lead"]["value"] for name, row in found["parts"]["overall"].items()} == {
        one: 0.5,
        "naive": None,
        two: -0.5,
        "mr2ag_fitted": 0.0,
    }
    assert found["parts"]["style a"]["mr2ag_fitted"]["lead"]["value"] == 1.0
    text = (tmp_path / "out/compare.md").read_text()
    assert f"| {one} | 100.0 (90.0 to 110.0) |" in text
    assert "## Over naive" in text
    with pytest.raises(SystemExit):
        compare.main(["--evaluations", *folders, "--against", "pmsr", "--output", str(tmp_path / "out")])
    record = {"metric": "vqa", "questions": rows[:1], "correct": {"pmsr": [1]}}
    (tmp_path / "two/scored.json").write_text(json.dumps(record))
    with pytest.raises(UserError, match=r"two and .* have different questions or metrics"):
        joined(read_metrics(folders, "scored.json"))


def test_pipelines_that_are_with_folder_names_keep_what_they_are() -> None:
    """Neither a folder's name makes an oracle, nor does a plot name two points alike."""
    content = metrics({"naive": 0.5, "mi_rag": 0.6}, names={"mi_rag": "MI-RAG", "naive": "Naive"})
    content["comparisons"]["mi_rag - best_baseline"] = score(0.1)
    record = compared(with_folder_names({"runs/oracle_kb": content, "runs/b": content}))
    names = [f"mi_rag ({folder})" for folder in ("runs/oracle_kb", "runs/b")]
    assert [record["pipelines"][name]["on_front"]["read"] for name in names] == [True, True]
    assert [record["names"][name] for name in names] == [name.replace("mi_rag", "MI-RAG") for name in names]
    text = page(record)
    assert "Leads not at equal depth" in text
    assert "| MI-RAG (runs/b) (`mi_rag`) |" in text


def test_columns_are_those_of_all_evaluations_and_bem_is_one() -> None:
    more = metrics({"naive": 0.3})
    more["metric"] = {**more["metric"], "columns": {"overall": "overall", "time": "time"}}
    more["pipelines"]["naive"]["time"] = score(0.3)
    record = compared({"one": ONE, "two": more})
    assert record["pipelines"]["naive"]["columns"]["time"] == [None, score(0.3)]
    assert "| time |" in page(record)
    more["metric"]["bem"] = {"name": "bem", "fingerprint": "1"}
    with pytest.raises(UserError, match="different checkpoints of BEM"):
        compared({"one": ONE, "two": more})


def test_without_matplotlib_the_table_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    text = written(one=ONE)
    assert "| pmsr | 60.0" in text
    assert "No plot: charts are drawn by matplotlib: pip install 'reflectune[report]'." in text


def scored(outcomes: dict[str, list[str | None]]) -> dict[str, Any]:
    rows = [{"id": key, "split": "val", "entities": [], "groups": {}} for key in ("a", "b|`<i>", "c", "d")]
    return {"metric": "infoseek", "questions": rows, "correct": {}, "outcomes": outcomes}


def test_questions_that_flip_between_two_evaluations_are_named_with_the_step_that_lost_them(tmp_path: Path) -> None:
    records = (
        scored({"pmsr": ["right", "not_found", "misread", "gate"], "naive": ["right"] * 4}),
        scored({"pmsr": ["rejected", "right", "not_found", None], "slow": ["right"] * 4}),
    )
    for name, record in zip(("one", "two"), records, strict=True):
        (tmp_path / name).mkdir()
        (tmp_path / name / "metrics.json").write_text(json.dumps({**ONE, "names": {"pmsr": "PMSR"}}))
        (tmp_path / name / "scored.json").write_text(json.dumps(record))
    folders = [str(tmp_path / name) for name in ("one", "two")]
    compare.main(["--evaluations", *folders, "--output", str(tmp_path / "out")])
    flipped = [
        {"id": "a", "before": "right", "after": "rejected"},
        {"id": "b|`<i>", "before": "not_found", "after": "right"},
    ]
    found = json.loads((tmp_path / "out/compare.json").read_text())["flips"]
    assert found == {"pmsr": {"asked": 3, "flipped": flipped}}
    text = (tmp_path / "out/compare.md").read_text()
    other = {**records[1], "questions": [{**row, "split": "test"} for row in records[1]["questions"]]}
    assert flips(records[0], other)["pmsr"] == {"asked": 0, "flipped": []}  # other questions of the same ids
    lost = "1 | entry not found 1 | 1 | passage rejected or not read 1 |"
    score = "60.0 (50.0 to 70.0)"
    assert f"| PMSR (`pmsr`) | {score} | {score} | 3 | {lost}" in text
    assert "| PMSR (`pmsr`) | `b¦'<i>` | entry not found | right |" in text
    compare.main(["--evaluations", folders[0], folders[0] + "/", "--output", str(tmp_path / "equal")])
    text = (tmp_path / "equal/compare.md").read_text()
    assert "No question flipped." in text
    assert "| pipeline | question |" not in text

"""Evaluations set side by side: means over them, who is undercut by nobody, and what can't be compared."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from reflectune.core.config import find_problems
from reflectune.core.errors import UserError
from reflectune.inference.comparing.config import CompareConfig
from reflectune.inference.comparing.page import page
from reflectune.inference.comparing.plot import labels, plot
from reflectune.inference.comparing.run import compared, describe, run, standing
from reflectune.inference.scoring.trajectories import COSTS


def score(value: float) -> dict[str, float]:
    return {"value": value, "low": value - 0.1, "high": value + 0.1, "n": 10}


def metrics(scores: dict[str, float], read: dict[str, float | None], metric: str = "infoseek") -> dict[str, Any]:
    """What metrics.json has of some pipelines: their overall score, and tokens read of a question."""
    first, last = ({"article_recall": score(share), "by_base": {}, "record": score(0.4)} for share in (0.8, 0.9))
    walked = {"iterations": 2.0, "ended": {"queries repeat": 9, "after 4 iterations": 1}, "by_iteration": [first, last]}
    return {
        "metric": {"name": metric, "caption": "A score", "columns": {"overall": "overall"}},
        "pipelines": {
            **{name: {"overall": score(value), "by_type": {}} for name, value in scores.items()},
            "best_baseline": {"overall": score(scores["naive"]), "by_type": {}},
        },
        "best_baseline": "naive",
        "comparisons": {"pmsr - best_baseline": {**score(scores["pmsr"] - scores["naive"]), "of": "overall"}},
        "costs": {name: {**dict.fromkeys(COSTS, 1.0), "read": tokens} for name, tokens in read.items()},
        "trajectories": {"pmsr": walked},
    }


def written(**evaluations: dict[str, Any]) -> str:
    """The page of some evaluations."""
    return page({**compared(evaluations), "command": "compare --config x.yaml"})


FIRST = metrics({"naive": 0.5, "pmsr": 0.6, "slow": 0.55}, {"naive": 100.0, "pmsr": 1000.0, "slow": 2000.0})
SECOND = metrics({"naive": 0.3, "pmsr": 0.6, "slow": 0.55}, {"naive": 300.0, "pmsr": 3000.0, "slow": None})


def test_scores_and_costs_are_means_over_evaluations() -> None:
    record = compared({"one": FIRST, "two": SECOND})
    assert list(record["pipelines"]) == ["naive", "pmsr", "slow"]
    assert [each["value"] for each in record["pipelines"]["naive"]["score"]] == [0.5, 0.3]
    assert record["pipelines"]["naive"]["costs"]["read"] == 200.0
    assert record["pipelines"]["slow"]["costs"]["read"] is None  # one of them doesn't count it
    assert record["pipelines"]["slow"]["lead"] == [None, None]


def test_the_front_is_what_nobody_beats_and_undercuts() -> None:
    rows = compared({"one": FIRST})["pipelines"]
    assert {name: row["on_front"]["read"] for name, row in rows.items()} == {"naive": True, "pmsr": True, "slow": False}
    equal = compared({"one": FIRST})["pipelines"]  # at equal cost the better one alone
    assert [name for name, row in equal.items() if row["on_front"]["calls"]] == ["pmsr"]
    assert compared({"two": SECOND})["pipelines"]["slow"]["on_front"]["read"] is None


def test_an_oracle_is_on_no_front_and_keeps_nobody_off_it() -> None:
    told = metrics(
        {"naive": 0.5, "pmsr": 0.6, "oracle_passage": 0.9}, {"naive": 9.0, "pmsr": 99.0, "oracle_passage": 1.0}
    )
    rows = compared({"one": told})["pipelines"]
    assert [row["on_front"]["read"] for row in rows.values()] == [True, True, None]


def test_a_mean_over_a_part_of_the_questions_is_said_to_be_one() -> None:
    """Two worlds, and a checkpoint of one alone: its mean is of easier questions, perhaps."""
    first, second = {**FIRST, "questions": "a"}, {**SECOND, "questions": "b"}
    second["pipelines"] = {name: table for name, table in SECOND["pipelines"].items() if name != "pmsr"}
    second["costs"] = {name: costs for name, costs in SECOND["costs"].items() if name != "pmsr"}
    second["comparisons"], second["trajectories"] = {}, {}
    rows = compared({"one": first, "two": second})["pipelines"]
    assert {name: row["unasked"] for name, row in rows.items()} == {"naive": 0, "pmsr": 1, "slow": 0}
    assert {name: row["on_front"]["calls"] for name, row in rows.items()} == {
        "naive": False,
        "pmsr": None,
        "slow": True,
    }
    assert "not to be read beside the others': pmsr (1 of 2 sets)." in written(one=first, two=second)
    apart = {**second, "questions": "a"}  # of the same questions, in an evaluation of its own
    assert "beside the others'" not in written(one=first, two=apart)
    assert compared({"one": first, "two": apart})["pipelines"]["pmsr"]["on_front"]["calls"]


def test_no_name_of_the_plot_lies_on_another_or_on_a_dot() -> None:
    dots = {f"pipeline_{n}": (300.0 + 3 * (n % 4), 380.0 - 4 * (n // 4)) for n in range(24)}
    placed = labels(dots)
    assert placed.keys() == dots.keys()
    boxes = []
    for name, label in placed.items():
        left = label.x if label.anchor == "start" else label.x - 6 * len(name)
        boxes.append((left, label.y - 9, left + 6 * len(name), label.y + 2))
    boxes += [(x - 4, y - 4, x + 4, y + 4) for x, y in dots.values()]
    for place, one in enumerate(boxes[: len(dots)]):
        for other in boxes[place + 1 :]:
            assert one[2] <= other[0] or other[2] <= one[0] or one[3] <= other[1] or other[3] <= one[1]


def test_a_lone_name_stands_right_of_its_dot() -> None:
    (label,) = labels({"pmsr": (300.0, 200.0)}).values()
    assert (label.anchor, label.is_far) == ("start", False)
    assert 300 < label.x < 310


def test_the_axis_of_scores_ends_just_above_the_best() -> None:
    low = metrics({"naive": 0.2, "pmsr": 0.1}, {"naive": 1.0, "pmsr": 2.0})
    texts = [text.text for text in ElementTree.fromstring(plot(compared({"one": low}), "read")).findall(".//{*}text")]
    assert "25" in texts
    assert "100" not in texts


def test_the_page_says_all_of_it() -> None:
    text = written(one=FIRST, two=SECOND)
    assert "`compare --config x.yaml`, 2 evaluations of 10, 10 questions." in text
    assert (
        "| pmsr | 60.0 (60.0 to 60.0) | +20.0 (+10.0 to +30.0) | ties (1 ahead, 0 behind of 2) | 1 | 1 | 1 | 2,000 | "
        "1 | 1 | 1 |" in text
    )
    assert "| naive | 40.0 (30.0 to 50.0) | – |" in text
    assert "by tokens read pmsr, naive" in text


def test_a_pipeline_has_one_table_of_its_iterations_over_all_evaluations() -> None:
    short = {**FIRST["trajectories"]["pmsr"], "ended": {"queries repeat": 3}, "iterations": 1.0}
    first = {"article_recall": score(0.6), "by_base": {}, "record": score(0.2)}
    short["by_iteration"] = [first]
    text = written(one=FIRST, two={**SECOND, "trajectories": {"pmsr": short}})
    assert text.count("## pmsr by iteration") == 1
    assert "| 0 | 70.0 (60.0 to 80.0) | 30.0 (20.0 to 40.0) |" in text
    assert "| 1 | 75.0 (60.0 to 90.0) | 30.0 (20.0 to 40.0) |" in text  # what has ended keeps what it had
    assert "1.5 iterations on average (queries repeat: 12, after 4 iterations: 1)." in text
    once = written(one={**FIRST, "trajectories": {"pmsr": {**short, "by_iteration": [{**first, "record": None}]}}})
    assert "by iteration" not in once
    assert "## How the others end\n\n- pmsr: queries repeat: 3." in once


def test_a_lead_is_said_to_be_at_equal_depth_only_where_it_is() -> None:
    text = written(one=FIRST, noisy={**SECOND, "noise": {"pmsr": 4}})
    assert "(naive), paired by question; that of pmsr is not at equal depth: its own keys say how much it reads" in text
    both = {**FIRST, "comparisons": {f"{name} - best_baseline": score(0.1) for name in ("pmsr", "mi_rag")}}
    both["pipelines"] = {**FIRST["pipelines"], "mi_rag": FIRST["pipelines"]["pmsr"]}
    both["costs"] = {**FIRST["costs"], "mi_rag": FIRST["costs"]["pmsr"]}
    assert "that of pmsr, mi_rag is not at equal depth: keys of their own say" in written(one=both)
    same = metrics({"naive": 0.5, "mr2ag": 0.6, "pmsr": 0.4}, dict.fromkeys(("naive", "mr2ag", "pmsr"), 1.0))
    same["comparisons"] = {"mr2ag - best_baseline": score(0.1)}
    assert "(naive), paired by question; a pipeline is ahead" in written(one=same)


def test_what_iterations_gain_is_told_paired_by_question() -> None:
    walked = {**FIRST["trajectories"]["pmsr"], "asked": score(0.25)}
    walked["gained"] = {"article_recall": score(0.2), "record": None, "bases": score(0.1)}
    text = written(one={**FIRST, "trajectories": {"pmsr": walked}})
    assert "the last iteration less the first, article recall +20.0 (+10.0 to +30.0);" in text
    assert "the best alone +10.0 (+0.0 to +20.0);" in text
    assert "with a query that the model wrote 25.0 (15.0 to 35.0)." in text
    assert "records that state an answer" not in text
    assert "In points" not in written(one=FIRST)  # of metrics that an earlier version wrote


def test_budgets_stand_beside_the_papers() -> None:
    few = {"iterations": 2, "text_passages": 6, "pair_passages": 4, "text_weight": 0.25, "max_record_tokens": 48}
    text = written(
        one={**FIRST, "budgets": {"mi_rag": few, "pmsr": few, "pmsr_fixed": {**few, "iterations": 4}}},
        two={**SECOND, "budgets": {"pmsr_fixed": few}},
    )
    rest = (
        "`text_passages` 6 (20), `pair_passages` 4 (10), `text_weight` 0.25 (0.5), `max_record_tokens` 48 (not said).\n"
    )
    told = "in brackets those of their papers: `iterations`"
    assert f"\n\nBudgets of mi_rag, pmsr, {told} 2 (4), {rest}\n" in text
    assert f"\n\nBudgets of pmsr_fixed, {told} 2 and 4 (4), {rest}\n| pipeline" in text
    assert "Budgets" not in written(one=FIRST, two=SECOND)


def test_oracles_stand_behind_all_others() -> None:
    scores = {"naive": 0.5, "pmsr": 0.6, "oracle_passage": 0.9}
    text = written(one=metrics(scores, dict.fromkeys(scores, 1.0)))
    rows = [line.split(" | ")[0] for line in text.splitlines() if line.startswith("| ")]
    assert rows[:4] == ["| pipeline", "| pmsr", "| naive", "| oracle_passage"]


@pytest.mark.parametrize("cost", COSTS)
def test_the_plot_has_a_dot_for_every_pipeline_that_counts_the_cost(cost: str) -> None:
    evil = metrics({"naive": 0.5, "pmsr": 0.6, "<b>": 0.1}, {"naive": 0.0, "pmsr": 5.0, "<b>": 7.0})
    drawing = ElementTree.fromstring(plot(compared({"one": evil}), cost))
    dots = drawing.findall(".//{*}circle")
    assert len(dots) == 3
    assert all(0 <= float(dot.attrib["cx"]) <= 760 and 0 <= float(dot.attrib["cy"]) <= 420 for dot in dots)


def test_different_metrics_are_not_compared() -> None:
    other = metrics({"naive": 0.5, "pmsr": 0.6}, {"naive": 1.0, "pmsr": 2.0}, metric="vqa")
    with pytest.raises(UserError, match="scored by infoseek and vqa"):
        compared({"one": FIRST, "two": other})


def test_finished_evaluations_are_read_and_not_run(tmp_path: Path) -> None:
    folder = tmp_path / "one"
    folder.mkdir()
    (folder / "metrics.json").write_text(json.dumps(FIRST))
    config = CompareConfig(evaluations=[str(folder)], output=str(tmp_path / "out"))
    assert config.problems() == []
    assert "finished" in describe(config, [])
    record = run(config, [], "compare")
    assert json.loads((tmp_path / "out/compare.json").read_text()) == record
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"compare.json", "compare.md", "compare.svg"}

    del (old := dict(FIRST))["costs"]
    (folder / "metrics.json").write_text(json.dumps(old))
    with pytest.raises(UserError, match="run `evaluate` again"):
        run(config, [], "compare")


def test_one_config_may_be_run_with_other_keys(tmp_path: Path) -> None:
    (file := tmp_path / "x.yaml").write_text("")
    named = [f"{file}", f"{file} seed=1 'splits=[val_unseen_entity]'", f"{file} seed=2"]
    config = CompareConfig(evaluations=named, output=str(tmp_path / "out"), limit=3)
    assert config.problems() == []
    folders = config.folders()
    assert len(set(folders.values())) == 3
    assert folders[named[0]].name == "x"
    (plain, changed, _) = config.planned().values()
    assert plain == {"config": str(file), "limit": "3", "output": str(folders[named[0]])}
    assert (changed["seed"], changed["splits"]) == ("1", "[val_unseen_entity]")


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


def test_irrelevant_passages_make_a_pipeline_of_their_own_and_a_table() -> None:
    noisy = {**SECOND, "noise": {"pmsr": 4}}
    record = compared({"clean": FIRST, "noisy": noisy})
    assert list(record["pipelines"]) == ["naive", "pmsr", "slow", "pmsr, noise 4"]
    assert [len(row["score"]) for row in record["pipelines"].values()] == [2, 1, 2, 1]
    assert record["pipelines"]["pmsr, noise 4"]["lead"][0]["value"] == pytest.approx(0.3)
    text = page({**record, "command": "compare"})
    assert "| pipeline | none | 4 |" in text
    assert "| pmsr | 60.0 (50.0 to 70.0) | 60.0 (50.0 to 70.0) |" in text
    assert "Irrelevant" not in written(clean=FIRST)


def test_what_the_stop_rule_saves_is_told() -> None:
    stop = {"iterations": 2.0, "fixed": 5.0, "stopped": 1.0, "saved": score(0.6), "lost": score(0.0)}
    text = written(one={**FIRST, "stop_rule": {**stop, "verdict": "not settled"}}, two=SECOND)
    assert "2 iterations with a record in place of 5, 60.0 % saved (50.0 to 70.0), at +0.0 points lost" in text
    assert "no more than 1 point lost: not settled." in text
    several = written(**{name: {**FIRST, "stop_rule": {**stop, "verdict": "reached"}} for name in ("one", "two")})
    assert "| 2 | 2 | 5 | 60.0 (50.0 to 70.0) | +0.0 (-10.0 to +10.0) | reached |" in several


def test_what_is_wrong_is_said_at_once(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for name in ("a/x.yaml", "b/x.yaml"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text("")
    named = [str(tmp_path / name) for name in ("empty", "nowhere", "a/x.yaml", "b/x.yaml")]
    told = " ".join(find_problems(CompareConfig, {"evaluations": named}))
    assert "has no metrics.json" in told
    assert "neither a YAML file nor a folder" in told
    assert "two configs have one file name" in told
    assert "`output` is needed" in told
    spoilt = [str(tmp_path / "a/x.yaml") + more for more in (" limit", " 'limit=1", " output=o")]
    told = " ".join(find_problems(CompareConfig, {"evaluations": spoilt, "output": str(tmp_path / "out")}))
    assert "`limit` behind" in told
    assert "No closing quotation" in told
    assert "leave out output=" in told
    assert any("`evaluations` is empty" in issue for issue in find_problems(CompareConfig, {"output": "o"}))


ONE_OF_TWO = """
import sys
import time
from pathlib import Path
from types import SimpleNamespace

from reflectune.core.errors import entry_point
from reflectune.core.resumable import join_launch
from reflectune.inference.comparing import run as compare_run
from reflectune.inference.comparing.config import CompareConfig

finished, output, metrics = sys.argv[1:]


def evaluate(evaluation):
    processes, _ = join_launch("cpu")
    processes.wait()  # all is answered
    if processes.index == 0:
        time.sleep(1)  # and is scored
        Path(finished, "metrics.json").write_text(metrics)
    return {}


@entry_point
def main():
    compare_run.experiment.run = evaluate
    config = CompareConfig(evaluations=[finished], output=output)
    print(bool(compare_run.run(config, [SimpleNamespace(output="runs")], "compare")), flush=True)


main()
"""


def test_of_a_launch_the_first_process_compares_what_it_alone_has_scored(
    start_processes: Callable[..., list[Any]], tmp_path: Path
) -> None:
    """The others are through with an evaluation before its metrics.json is there."""
    (tmp_path / "finished").mkdir()
    script = tmp_path / "one_of_two.py"
    script.write_text(ONE_OF_TWO)
    arguments = [str(script), *(str(tmp_path / name) for name in ("finished", "out")), json.dumps(FIRST)]
    both = start_processes(arguments, arguments)
    assert [program.wait(timeout=60) for program in both] == [0, 0], [program.stderr for program in both]
    assert [program.stdout for program in both] == ["True\n", "False\n"]
    assert (tmp_path / "out/compare.md").is_file()

"""A comparison from its config to one table: evaluations are run, and their scores and costs set side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from reflectune.core.durable import read_json, write_atomically, write_json
from reflectune.core.errors import UserError
from reflectune.core.resumable import launch_state
from reflectune.inference.comparing.config import CompareConfig
from reflectune.inference.comparing.merge import merged
from reflectune.inference.comparing.page import NOISE, ORACLE, page
from reflectune.inference.comparing.plot import mean_score, plot
from reflectune.inference.running import experiment
from reflectune.inference.running.config import EvaluateConfig
from reflectune.inference.scoring.evaluation import BEST_BASELINE
from reflectune.inference.scoring.trajectories import COSTS, mean_if_all
from reflectune.metrics.reporting.breakdown import OVERALL

Record = dict[str, Any]


def run(config: CompareConfig, evaluations: Sequence[EvaluateConfig], command: str) -> Record:
    """Run evaluations, and write `compare.md`, `compare.svg` and `compare.json` of these and the finished ones.

    Those of the same questions are scored together; see `merged`.

    Args:
        config: What to compare.
        evaluations: Those of its evaluations that are configs.
        command: The command that this is, as the page tells it.

    Returns:
        The content of compare.json; of all processes only the first one compares, the others return {}.

    Raises:
        UserError: Two evaluations are scored by different metrics, or one was written by an earlier version.
    """
    for evaluation in evaluations:
        experiment.run(evaluation)
    if not launch_state().is_main_process:
        return {}
    metrics = {name: _read(folder) for name, folder in config.folders().items()}
    by_folder = {Path(evaluation.output): evaluation for evaluation in evaluations}
    run_here = {name: by_folder[folder] for name, folder in config.folders().items() if folder in by_folder}
    record = {**compared(merged(run_here, metrics)), "evaluations": config.evaluations, "command": command}
    write_json(Path(config.output, "compare.json"), record)
    write_atomically(Path(config.output, "compare.svg"), plot(record, config.cost))
    write_atomically(Path(config.output, "compare.md"), page(record))
    return record


def describe(config: CompareConfig, evaluations: Sequence[EvaluateConfig]) -> str:
    """What a run would do, for `--dry_run`."""
    finished = [f"{name}: finished" for name in config.evaluations if Path(name).is_dir()]
    then = f"then {config.output}: compare.md, compare.svg, compare.json"
    return "\n".join([*finished, *map(experiment.describe, evaluations), then])


def compared(metrics: Mapping[str, Mapping[str, Any]]) -> Record:
    """The table of a comparison.

    Args:
        metrics: The content of metrics.json, by evaluation.

    Returns:
        `metric`, `evaluations` (their names), `stop_rules` (what PMSR's stop saves, of each that measured it),
        `budgets` (of MI-RAG's and PMSR's pipelines, by name and key the different values), and by pipeline `score`,
        `columns` (the same of each column) and `lead` over the best baseline, at equal depth but for pipelines that
        have their own (one of each evaluation that ran it, None where it can't be said), `costs` (means over
        evaluations), `trajectories` (of each evaluation), `unasked` (how many of the sets of questions it was not
        asked), and `on_front`: by kind of cost, whether no other pipeline that was asked as many is both at least as
        good and at least as cheap, and better in one.

    Raises:
        UserError: The evaluations are scored by different metrics.
    """
    metrics = {name: _with_noise_named(content) for name, content in metrics.items()}
    kinds = {content["metric"]["name"] for content in metrics.values()}
    if len(kinds) > 1:
        raise UserError(f"the evaluations are scored by {' and '.join(sorted(kinds))}; compare those of one metric")
    names = dict.fromkeys(name for content in metrics.values() for name in content["pipelines"])
    pipelines = {name: _pipeline(name, list(metrics.values())) for name in names if name != BEST_BASELINE}
    for name, row in pipelines.items():
        row["on_front"] = {cost: _on_front(name, pipelines, cost) for cost in COSTS}
    return {
        "metric": next(iter(metrics.values()))["metric"],
        "evaluations": list(metrics),
        "budgets": _budgets(list(metrics.values())),
        "question_sets": len(_question_sets(list(metrics.values()))),
        "best_baselines": [content[BEST_BASELINE] for content in metrics.values()],
        "pipelines": pipelines,
        "stop_rules": [content["stop_rule"] for content in metrics.values() if content.get("stop_rule")],
    }


def _budgets(evaluations: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, list[float]]]:
    """Each pipeline's budgets: by key the values of all evaluations, lowest first."""
    told = [content.get("budgets", {}) for content in evaluations]
    names = dict.fromkeys(name for each in told for name in each)
    rows = {name: [each[name] for each in told if name in each] for name in names}
    return {name: {key: sorted({row[key] for row in rows[name]}) for key in rows[name][0]} for name in rows}


def _with_noise_named(content: Mapping[str, Any]) -> Mapping[str, Any]:
    """The metrics of an evaluation; what had irrelevant passages among its records is a pipeline of its own."""
    named = {name: f"{name}{NOISE}{count}" for name, count in content.get("noise", {}).items()}
    leads = {f"{name} - {BEST_BASELINE}": f"{new} - {BEST_BASELINE}" for name, new in named.items()}
    renamed = {
        part: {(named | leads).get(name, name): value for name, value in content[part].items()}
        for part in ("pipelines", "comparisons", "costs", "trajectories")
    }
    return {**content, **renamed} if named else content


def standing(leads: Sequence[Mapping[str, Any] | None]) -> str:
    """How a pipeline stands to the best baseline by the paired intervals of all evaluations; "" if there is none.

    It is ahead if each of them is above 0, and behind if each is below.
    """
    known = [lead for lead in leads if lead is not None]
    if not known:
        return ""
    ahead, behind = (sum(test) for test in ([lead["low"] > 0 for lead in known], [lead["high"] < 0 for lead in known]))
    if len(known) in (ahead, behind):
        return f"{'ahead' if ahead else 'behind'} in {len(known)} of {len(known)}"
    return f"ties ({ahead} ahead, {behind} behind of {len(known)})"


def _pipeline(name: str, evaluations: Sequence[Mapping[str, Any]]) -> Record:
    ran = [content for content in evaluations if name in content["pipelines"]]
    return {
        "score": [_headline(content["pipelines"][name]) for content in ran],
        "columns": {
            column: [content["pipelines"][name].get(column) for content in ran]
            for column in evaluations[0]["metric"]["columns"]
            if column != OVERALL
        },
        "lead": (leads := [content["comparisons"].get(f"{name} - {BEST_BASELINE}") for content in ran]),
        "standing": standing(leads),
        "costs": {cost: mean_if_all([content["costs"][name].get(cost) for content in ran]) for cost in COSTS},
        "trajectories": [content["trajectories"][name] for content in ran if name in content["trajectories"]],
        "unasked": len(_question_sets(evaluations)) - len(_question_sets(ran)),
    }


def _question_sets(evaluations: Sequence[Mapping[str, Any]]) -> set[str]:
    """The different sets of questions that were scored; "" for all of those that metrics.json doesn't tell apart."""
    return {content.get("questions", "") for content in evaluations}


def _headline(table: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The overall score; of a table of one half that half's."""
    if table.get(OVERALL) is not None:
        overall: Mapping[str, Any] = table[OVERALL]
        return overall
    return next((score for column, score in table.items() if column != "by_type" and score is not None), None)


def _on_front(name: str, pipelines: Mapping[str, Record], cost: str) -> bool | None:
    """Whether nobody beats and undercuts it.

    An oracle is told what others have to find, and a mean over a part of the questions is of others: neither counts.
    """
    own = _point(pipelines[name], cost)
    if own is None or ORACLE in name or pipelines[name]["unasked"]:
        return None
    fair = {
        other: row for other, row in pipelines.items() if other != name and ORACLE not in other and not row["unasked"]
    }
    others = [point for row in fair.values() if (point := _point(row, cost)) is not None]
    return not any(price <= own[0] and value >= own[1] and (price, value) != own for price, value in others)


def _point(row: Mapping[str, Any], cost: str) -> tuple[float, float] | None:
    """(cost, mean score) of a pipeline; None if one of them isn't known."""
    value, price = mean_score(row["score"]), row["costs"][cost]
    return None if price is None or value is None else (price, value)


def _read(folder: Path) -> Mapping[str, Any]:
    content: Mapping[str, Any] = read_json(folder / "metrics.json", "the metrics of an evaluation")
    if "costs" not in content:
        raise UserError(f"{folder}/metrics.json has no costs: run `evaluate` again, it only scores anew")
    return content

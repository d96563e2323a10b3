"""Scores and costs of pipelines over several evaluations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from reflectune.core.durable import read_json
from reflectune.core.errors import UserError
from reflectune.inference.scoring.evaluation import BEST_BASELINE, BESTS
from reflectune.inference.scoring.losses import RIGHT
from reflectune.inference.scoring.seeds import question_keys, with_folder
from reflectune.inference.scoring.trajectories import COSTS, mean_if_all
from reflectune.metrics.reporting.breakdown import OVERALL

Record = dict[str, Any]
Metrics = Mapping[str, Any]

ORACLE = "oracle"
"""Part of the names of pipelines that are given the gold entry or passage."""


def read_metrics(folders: Sequence[str], file: str = "metrics.json") -> dict[str, Metrics]:
    """Return the content of each evaluation's metrics.json, or of another file of its scores, by folder."""
    return {name: read_json(Path(name, file), "the scores of an evaluation") for name in folders}


def compared(metrics: Mapping[str, Metrics]) -> Record:
    """Return the table of a comparison, the content of compare.json.

    Args:
        metrics: Content of metrics.json, by evaluation.

    Returns:
        `metric`, `evaluations` (names), `names` (titles of pipelines), `best_baselines` (one per evaluation),
        `question_sets` (count), `questions` (numbers of scored ones, by evaluation), and by pipeline in `pipelines`:

        - `score`, `columns`, and `lead` over the evaluation's best baseline: lists with an item for each evaluation
          that ran the pipeline;
        - `standing`; `costs` (means); `budget` (values by key);
        - `unasked`: number of question sets that it was not run on;
        - `on_front`: True if it is on the Pareto front of score and cost, by kind of cost.

    Raises:
        UserError: The evaluations are scored by different metrics, or by different checkpoints of BEM.
    """
    contents = [_with_noise_named(content) for content in metrics.values()]
    kinds = {content["metric"]["name"] for content in contents}
    if len(kinds) > 1:
        raise UserError(f"the evaluations are scored by {' and '.join(sorted(kinds))}; compare those of one metric")
    if len({str(content["metric"]["bem"]) for content in contents}) > 1:
        raise UserError("the evaluations are scored by different checkpoints of BEM; compare those of one")
    names = dict.fromkeys(name for content in contents for name in content["pipelines"] if name not in BESTS)
    pipelines = {name: _pipeline(name, contents) for name in names}
    for name, row in pipelines.items():
        row["on_front"] = {cost: _is_on_front(name, pipelines, cost) for cost in COSTS}
    return {
        "metric": {**contents[0]["metric"], "columns": _columns(contents)},
        "evaluations": list(metrics),
        "names": {name: title for content in contents for name, title in content["names"].items()},
        "question_sets": len(_question_sets(contents)),
        "questions": {name: _asked(content) for name, content in metrics.items()},
        "best_baselines": [content[BEST_BASELINE] for content in contents],
        "pipelines": pipelines,
    }


def flips(before: Metrics, after: Metrics) -> Record:
    """Return the questions that one evaluation answers right and the other wrong, by pipeline that both ran.

    Args:
        before: Content of an evaluation's scored.json.
        after: Content of the other one's scored.json.

    Returns:
        By pipeline `asked`, the number of questions in both, and `flipped`: their ids, with the outcome in each.
    """
    table = {}
    for name in [name for name in before["outcomes"] if name in after["outcomes"]]:
        first = dict(zip(question_keys(before), before["outcomes"][name], strict=True))
        second = dict(zip(question_keys(after), after["outcomes"][name], strict=True))
        asked = [
            {"id": key[0], "before": outcome, "after": second[key]}
            for key, outcome in first.items()
            if outcome and second.get(key)
        ]
        flipped = [row for row in asked if (row["before"] == RIGHT) != (row["after"] == RIGHT)]
        table[name] = {"asked": len(asked), "flipped": flipped}
    return table


def mean_score(scores: Sequence[Mapping[str, float] | None]) -> float | None:
    """Return the mean over evaluations that have a score."""
    known = [score["value"] for score in scores if score is not None]
    return sum(known) / len(known) if known else None


def standing(leads: Sequence[Mapping[str, Any] | None]) -> str:
    """Return whether a pipeline is ahead of the best baseline, behind, or ties; "" without a lead.

    It is ahead if the paired interval of every evaluation is above 0, and behind if every one is below 0.
    """
    known = [lead for lead in leads if lead is not None]
    ahead, behind = sum(lead["low"] > 0 for lead in known), sum(lead["high"] < 0 for lead in known)
    if known and len(known) in (ahead, behind):
        return f"{'ahead' if ahead else 'behind'} in {len(known)} of {len(known)}"
    return f"ties ({ahead} ahead, {behind} behind of {len(known)})" if known else ""


def with_folder_names(metrics: Mapping[str, Metrics]) -> dict[str, Metrics]:
    """Return evaluations in which pipelines that several ran are renamed by folder, as in `seeds.joined`."""
    ran = Counter(name for content in metrics.values() for name in content["pipelines"])
    several = {name for name, count in ran.items() if count > 1} - {*BESTS}
    return {
        folder: _renamed(
            content, {name: with_folder(name, folder) for name in several.intersection(content["pipelines"])}
        )
        for folder, content in metrics.items()
    }


def _with_noise_named(content: Metrics) -> Metrics:
    """Add `noise` to the names of pipelines with irrelevant passages, so that they are averaged separately."""
    return _renamed(content, {name: f"{name}, noise {count}" for name, count in content["noise"].items()})


def _renamed(content: Metrics, named: Mapping[str, str]) -> Metrics:
    named = {**named, **{f"{name} - {BEST_BASELINE}": f"{new} - {BEST_BASELINE}" for name, new in named.items()}}
    renamed = {
        part: {named.get(name, name): value for name, value in content[part].items()}
        for part in ("pipelines", "comparisons", "costs", "budgets")
    }
    renamed["names"] = {
        named.get(name, name): title + named.get(name, name).removeprefix(name)
        for name, title in content["names"].items()
    }
    return {**content, **renamed}


def _pipeline(name: str, evaluations: Sequence[Metrics]) -> Record:
    ran = [content for content in evaluations if name in content["pipelines"]]
    leads = [content["comparisons"].get(f"{name} - {BEST_BASELINE}") for content in ran]
    budgets = [content["budgets"][name] for content in ran if name in content["budgets"]]
    return {
        "score": [headline_score(content["pipelines"][name]) for content in ran],
        "columns": {
            column: [content["pipelines"][name].get(column) for content in ran]
            for column in _columns(evaluations)
            if column != OVERALL
        },
        "lead": leads,
        "standing": standing(leads),
        "costs": {cost: mean_if_all([content["costs"][name][cost] for content in ran]) for cost in COSTS},
        "budget": {key: sorted({budget[key] for budget in budgets}) for key in (budgets[0] if budgets else ())},
        "unasked": len(_question_sets(evaluations)) - len(_question_sets(ran)),
    }


def _columns(evaluations: Sequence[Metrics]) -> dict[str, str]:
    """Return the columns of all evaluations with their heads; one may lack another's splits or types."""
    return {column: head for content in evaluations for column, head in content["metric"]["columns"].items()}


def _question_sets(evaluations: Sequence[Metrics]) -> set[str]:
    return {content["questions"] for content in evaluations}


def plain(name: str) -> str:
    """Return a pipeline's name without its suffixes.

    Example:
        >>> plain("pmsr, noise 4 (runs/oracle)")
        'pmsr'
    """
    return name.partition(" (")[0].partition(",")[0]


def headline_score(table: Metrics) -> Metrics | None:
    """Return the overall score; for InfoSeek with questions of only one half, the score of that half."""
    scores = (table.get(OVERALL), *(score for column, score in table.items() if column != "by_type"))
    return next((score for score in scores if score is not None), None)


def _asked(content: Metrics) -> int:
    """Return the number of scored questions that a pipeline of an evaluation was asked, the largest one."""
    return max((score["n"] for table in content["pipelines"].values() if (score := headline_score(table))), default=0)


def _is_on_front(name: str, pipelines: Mapping[str, Record], cost: str) -> bool | None:
    """Return True if a pipeline is on the Pareto front: no other is at least as good and as cheap, and better in one.

    Oracles and pipelines that ran on only a part of the questions are excluded: None.
    """
    points = {
        other: (row["costs"][cost], score)
        for other, row in pipelines.items()
        if ORACLE not in plain(other) and not row["unasked"] and row["costs"][cost] is not None
        if (score := mean_score(row["score"])) is not None
    }
    if name not in points:
        return None
    expense, score = points[name]
    return not any(
        other_expense <= expense and other_score >= score and (other_expense, other_score) != (expense, score)
        for other_expense, other_score in points.values()
    )

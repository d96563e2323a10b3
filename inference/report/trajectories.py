"""Tables of the report about costs, and about the iterations of iterative pipelines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from markupsafe import Markup

from reflectune.core.html import Table, render
from reflectune.inference.report.tables import COST_HEADS, number, plain_names, score_cell
from reflectune.inference.scoring.evaluation import BESTS
from reflectune.inference.scoring.trajectories import COSTS
from reflectune.inference.trace import Trace

_MAX_ENDINGS, _TOO_MANY = 6, 20
_TEXTS = {"entity_mention": "entity mentioned", "prr": "answer found"}
_COURSES = {
    "stable_correct": "right throughout",
    "correction": "wrong, then right",
    "conflict": "right, then wrong",
    "persistent_fail": "never right",
}


def costs(metrics: Mapping[str, Any]) -> Markup:
    """Return the costs of a question by pipeline, and the iterations of each iterative one."""
    names = plain_names(metrics)
    rows = [
        [names[name], *(number(cost[column]) for column in COSTS)]
        for name, cost in metrics["costs"].items()
        if name not in BESTS
    ]
    caption = (
        "Of a scored question, on average. Tokens read are those of all prompts, each from its beginning, as separate "
        "calls read them. Tokens computed count the shared prefix of a question's prompts once (unknown behind a "
        "server). Seconds are those of a batch, shared equally."
    )
    tables = [Table(["pipeline", *COST_HEADS.values()], rows, caption)]
    notes = []
    for name, measured in metrics["trajectories"].items():
        if len(measured["by_iteration"]) > 1:
            tables.append(_iterations(names[name], measured))
        notes.append(_sentence(names[name], measured))
    if curve := metrics["saturation"]:
        tables.append(_saturation(curve))
    if stop := metrics["stop_rule"]:
        notes.append(_stop_sentence(stop))
    return render("inference/report/templates/tables.html", tables=tables, notes=notes)


def _stop_sentence(stop: Mapping[str, Any]) -> str:
    saved, lost = stop["saved"], stop["lost"]
    text = (
        f"PMSR's stop rule: {number(stop['iterations'])} iterations with a record in place of {number(stop['fixed'])}, "
        f"{100 * saved['value']:.1f} % saved ({100 * saved['low']:.1f} to {100 * saved['high']:.1f})"
    )
    cost = (
        f", at {100 * lost['value']:+.1f} points lost ({100 * lost['low']:+.1f} to {100 * lost['high']:+.1f})"
        if lost is not None
        else ""
    )
    return f"{text}{cost}, over the same {saved['n']} questions."


def browsed(trace: Trace, entity_ids: Collection[str]) -> list[dict[str, Any]]:
    """Return a trajectory's steps as the page shows them.

    Args:
        entity_ids: The question's entries; each step is marked if it found one.
    """
    return [
        {
            "operator": step.operator,
            "iteration": step.iteration,
            "text": step.text,
            "queries": list(step.queries),
            "found": len(step.found),
            "right": any(passage.entry_id in entity_ids for passage in step.found),
            "probability": None if step.probability is None else round(step.probability, 3),
            "each": [round(each, 3) for each in step.each],
            "finished": step.finished,
        }
        for step in trace.steps
    ]


def _iterations(name: str, measured: Mapping[str, Any]) -> Table:
    by_iteration: Sequence[Mapping[str, Any]] = measured["by_iteration"]
    bases = list(by_iteration[0]["by_base"]) if by_iteration else []
    texts = {name: title for name, title in _TEXTS.items() if by_iteration and name in by_iteration[0]}
    answered = any(record["answer"] for record in by_iteration)
    rows = [
        [
            str(iteration),
            score_cell(record["article_recall"]),
            *(score_cell(record["by_base"][base]) for base in bases),
            *(score_cell(record[name][scope].get("")) for name in texts for scope in ("so_far", "alone")),
            score_cell(record["record"]),
            *([score_cell(record["answer"])] if answered else []),
        ]
        for iteration, record in enumerate(by_iteration)
    ]
    head = ["iteration", "article recall so far", *(f"of {base}" for base in bases)]
    head += [f"{title}{scope}" for title in texts.values() for scope in (" so far", ", alone")]
    head += ["record states an answer", *(["answer"] if answered else [])]
    caption = (
        f"{name}, after each iteration, in %: whether an entry that the question is about has been found by then, and "
        "whether the last record states an accepted answer. An entity is mentioned if a text found names it, as PMSR "
        "counts; an answer is found if a text has its words; alone: in this iteration's texts. A trajectory that has "
        "ended keeps its last values."
    )
    return Table(head, rows, caption)


def _saturation(curve: Sequence[Mapping[str, float | None]]) -> Table:
    """Return the costs and results of each threshold τ."""
    shares = ("stopped", "record", "answer")
    columns = [name for name in curve[0] if curve[0][name] is not None and name != "tau"]
    rows = [
        ["never" if point["tau"] == 2 else number(point["tau"])]
        + [number(100 * value if name in shares else value) for name in columns if (value := point[name]) is not None]
        for point in curve
    ]
    caption = (
        "PMSR at other thresholds τ, from the trajectories that ran all iterations: each stops before the first search "
        "whose queries repeat. Means of a question; stopped, record and answer in %."
    )
    return Table(["τ", *columns], rows, caption)


def _sentence(name: str, measured: Mapping[str, Any]) -> str:
    text = f"{name}: {number(measured['iterations'])} iterations on average ({endings(measured)})."
    courses = measured["courses"]
    shares = ", ".join(f"{_COURSES[course]} {100 * share:.1f} %" for course, share in courses.items())
    text = f"{text} Its records: {shares}." if courses else text
    converged = {name: score for name, score in measured["after_convergence"].items() if score}
    counts = ", ".join(f"{_COURSES[name]} {number(score['value'])}" for name, score in converged.items())
    return f"{text} Iterations after records became right for good: {counts}." if counts else text


def endings(measured: Mapping[str, Any]) -> str:
    """Return the most common reasons why trajectories ended, with counts."""
    ended: Counter[str] = Counter(measured["ended"])
    if len(ended) > _TOO_MANY:
        return f"{len(ended)} different reasons"
    named = ended.most_common(_MAX_ENDINGS)
    parts = [f"{reason}: {count}" for reason, count in named]
    rest = ended.total() - sum(count for _, count in named)
    return ", ".join([*parts, f"{len(ended) - len(named)} other reasons: {rest}"] if rest else parts)

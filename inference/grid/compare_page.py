"""The page and the plot of a comparison."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from reflectune.core.html import render
from reflectune.inference.report.trajectories import COST_HEADS, number, stop_sentence
from reflectune.inference.scoring.trajectories import COSTS
from reflectune.metrics.breakdown import OVERALL

NOISE = ", noise "
"""What stands between a pipeline's name and how many irrelevant passages stood among its records."""
_MOST_NAMED = 3
_LETTER, _LINE = 0.0125, 0.04
"""A letter's width and a line's height in the plot, as shares of it."""
_LEAST = 1e-3
"""What a cost of nothing is drawn as."""


def page(record: Mapping[str, Any]) -> str:
    """A comparison as Markdown: scores, leads and costs, then each iterative pipeline by iteration."""
    many = len(record["evaluations"]) > _MOST_NAMED
    named = "…" if many else " ".join(map(shlex.quote, record["evaluations"]))
    told = f" ({len(record['evaluations'])} of them, which compare.json names)" if many else ""
    heads = {column: head for column, head in record["metric"]["columns"].items() if column != OVERALL}
    named_costs = [COST_HEADS[cost] for cost in COSTS]
    strongest = ", ".join(dict.fromkeys(filter(None, record["best_baselines"])))
    lines = [
        "# Pipelines side by side",
        "",
        f"`python -m reflectune.inference.compare --evaluations {named}`{told}. {record['metric']['caption']}. "
        "Score in per cent and lead in points: mean over evaluations, in brackets the 95 % interval of one evaluation, "
        "or the lowest to the highest of several. The lead is over the best baseline at equal depth "
        f"({strongest}), paired by question; a pipeline is ahead if its interval is above 0 in every evaluation. Costs "
        "are of one question: tokens read are those of all prompts, each from its beginning; of tokens computed, what "
        "a question's prompts begin with is read once. Oracles, which are told the entry, are on no front.",
        "",
        f"| {' | '.join(['pipeline', 'score', *heads.values(), 'lead', *named_costs, 'against the best baseline'])} |",
        f"|---|{'--:|' * (2 + len(heads) + len(COSTS))}---|",
    ]
    for name, row in _by_score(record["pipelines"]):
        costs = (number(row["costs"][cost]) for cost in COSTS)
        parts = (_spread(row["columns"][column]) for column in heads)
        standing = row.get("standing") or "–"
        cells = [name, _spread(row["score"]), *parts, _spread(row["lead"], sign=True), *costs, standing]
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", f"Neither beaten nor undercut by another: {_fronts(record['pipelines'])}."]
    lines += ["", "![Score against cost](compare.svg)", *_noise(record["pipelines"])]
    lines += [line for stop in record.get("stop_rules", ()) for line in ("", stop_sentence(stop))]
    lines += _iterations(record["pipelines"])
    return "\n".join(lines) + "\n"


def plot(record: Mapping[str, Any], cost: str) -> str:
    """Score against a cost, on a logarithmic axis, as an SVG file: a dot for each pipeline, and a line along the front.

    Args:
        record: The content of compare.json.
        cost: The kind of cost. Pipelines that don't count it are left out.
    """
    rows = {
        name: (max(row["costs"][cost], _LEAST), _mean(row["score"]), row["on_front"][cost])
        for name, row in _by_score(record["pipelines"])
        if row["costs"][cost] is not None and _mean(row["score"]) is not None
    }
    low, high = (
        (min(price for price, _, _ in rows.values()), max(price for price, _, _ in rows.values())) if rows else (1, 1)
    )
    dots = [(name, _place(price, low, high), value, front) for name, (price, value, front) in rows.items()]
    lifted = _lifted([(x, y or 0.0, len(name)) for name, x, y, _ in dots])
    return render(
        "inference/grid/templates/compare.html",
        label=f"{COST_HEADS[cost]} a question",
        dots=[(*dot, up) for dot, up in zip(dots, lifted, strict=True)],
        front=sorted((x, y) for _, x, y, front in dots if front),
        ticks=[(_place(price, low, high), number(price)) for price in dict.fromkeys((low, (low * high) ** 0.5, high))],
    )


def _lifted(labels: Sequence[tuple[float, float, int]]) -> list[float]:
    """How far up each label is moved, as a share of the plot's height, so that none lies on another.

    Args:
        labels: Each label's place, from 0 to 1, and its length in letters; the highest first.
    """
    taken: list[tuple[float, float, float]] = []
    lifted = []
    for x, y, letters in labels:
        end, height = x + _LETTER * letters, y
        while any(abs(height - other) < _LINE and x < right and left < end for left, right, other in taken):
            height -= _LINE / 4
        taken.append((x, end, height))
        lifted.append(height - y)
    return lifted


def _place(price: float, low: float, high: float) -> float:
    """Where a cost lies between the lowest and the highest, by its logarithm: from 0 to 1."""
    return 0.5 if low == high else math.log(price / low) / math.log(high / low)


def _by_score(pipelines: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return sorted(pipelines.items(), key=lambda item: -(_mean(item[1]["score"]) or 0.0))


def _mean(scores: Sequence[Mapping[str, float] | None]) -> float | None:
    known = [score["value"] for score in scores if score is not None]
    return sum(known) / len(known) if known else None


def _spread(scores: Sequence[Mapping[str, float] | None], *, sign: bool = False) -> str:
    known = [score for score in scores if score is not None]
    if not known:
        return "–"
    form = "+.1f" if sign else ".1f"
    mean = sum(score["value"] for score in known) / len(known)
    ends = (
        (known[0]["low"], known[0]["high"])
        if len(known) == 1
        else (min(score["value"] for score in known), max(score["value"] for score in known))
    )
    return f"{100 * mean:{form}} ({100 * ends[0]:{form}} to {100 * ends[1]:{form}})"


def _fronts(pipelines: Mapping[str, Any]) -> str:
    told = ((COST_HEADS[cost], [name for name, row in _by_score(pipelines) if row["on_front"][cost]]) for cost in COSTS)
    return "; ".join(f"by {head} {', '.join(names)}" for head, names in told if names)


def _noise(pipelines: Mapping[str, Any]) -> Iterator[str]:
    """Scores by how many irrelevant passages stood among a pipeline's records; nothing if there were none."""
    by_count: dict[str, dict[int, Any]] = {}
    for name, row in pipelines.items():
        plain, _, count = name.partition(NOISE)
        if count:
            by_count.setdefault(plain, {})[int(count)] = row["score"]
    counts = sorted({count for scores in by_count.values() for count in scores})
    if not counts:
        return
    yield from ("", "## Irrelevant passages among the records", "")
    yield f"| pipeline | none | {' | '.join(map(str, counts))} |"
    yield f"|---|{'--:|' * (1 + len(counts))}"
    for name, scores in by_count.items():
        clean = pipelines.get(name, {"score": []})["score"]
        yield f"| {name} | {_spread(clean)} | {' | '.join(_spread(scores.get(count, [])) for count in counts)} |"


def _iterations(pipelines: Mapping[str, Any]) -> Iterator[str]:
    for name, row in pipelines.items():
        for measured in row["trajectories"]:
            yield from ("", f"## {name} by iteration", "")
            yield "| iteration | article recall so far | record states an answer |"
            yield "|--:|--:|--:|"
            for place, iteration in enumerate(measured["by_iteration"]):
                yield f"| {place} | {_spread([iteration['article_recall']])} | {_spread([iteration['record']])} |"
            ended = ", ".join(f"{reason}: {count}" for reason, count in measured["ended"].items())
            yield f"\n{number(measured['iterations'])} iterations on average ({ended})."

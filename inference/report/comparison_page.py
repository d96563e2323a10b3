"""Page of a comparison: a table as Markdown, and a plot of score against cost as SVG."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from reflectune.inference.pipelines.iterative import PAPER_BUDGETS
from reflectune.inference.pipelines.registry import all_recipes
from reflectune.inference.report.comparison import ORACLE, mean_score, plain
from reflectune.inference.report.drawing import COLOURS, GREY, INSTALL, can_draw, canvas
from reflectune.inference.report.tables import COST_HEADS, number
from reflectune.inference.scoring.losses import OUTCOMES, RIGHT
from reflectune.inference.scoring.trajectories import COSTS
from reflectune.metrics.reporting.breakdown import OVERALL

_AXIS = "read"
"""Cost on the horizontal axis of the plot."""
_LEAST = 1e-3
"""Stands for a cost of 0 on the logarithmic axis."""
_MAX_FLIPS = 20


def page(record: Mapping[str, Any]) -> str:
    """Return the content of compare.md."""
    pipelines = record["pipelines"]
    heads = {column: head for column, head in record["metric"]["columns"].items() if column != OVERALL}
    head = ["pipeline", "score", "lead", "against the best baseline", *heads.values(), *map(COST_HEADS.get, COSTS)]
    lines = [
        *("# Pipelines compared", "", _caption(record), ""),
        f"| {' | '.join(map(str, head))} |",
        f"|---|--:|--:|---|{'--:|' * (len(head) - 4)}",
    ]
    for name, row in sorted(
        pipelines.items(), key=lambda item: (ORACLE in plain(item[0]), -(mean_score(item[1]["score"]) or 0))
    ):
        cells = [_named(name, record), _spread(row["score"]), _spread(row["lead"], sign=True), row["standing"] or "–"]
        cells += [_spread(row["columns"][column]) for column in heads]
        lines.append(f"| {' | '.join([*cells, *(number(row['costs'][cost]) for cost in COSTS)])} |")
    lines += ["", *_notes(record), *(seeds_table(record["leads"]) if "leads" in record else ())]
    lines += [*(flips_table(record) if "flips" in record else ()), ""]
    lines.append("![Score against cost](compare.svg)" if can_draw() else f"No plot: {INSTALL}.")
    return "\n".join(lines) + "\n"


def plot(record: Mapping[str, Any]) -> str:
    """Return the plot of score against tokens read as SVG. The front is orange; names are in the right margin.

    Raises:
        UserError: matplotlib is not installed.
    """
    points = {
        name: (max(row["costs"][_AXIS], _LEAST), 100 * score, row["on_front"][_AXIS])
        for name, row in record["pipelines"].items()
        if row["costs"][_AXIS] is not None and (score := mean_score(row["score"])) is not None
    }
    ordered = sorted(points, key=lambda name: points[name][1])
    buffer = io.StringIO()
    with canvas(buffer, 9.0, 5.0, facecolor="white") as axes:
        from matplotlib.ticker import LogLocator

        top = 1.05 * max([points[name][1] for name in ordered] + [1.0])
        for name, height in zip(ordered, spread_out([points[name][1] / top for name in ordered], 0.045), strict=True):
            x, y, is_on_front = points[name]
            colour = COLOURS[1] if is_on_front else GREY
            axes.plot(x, y, "o", color=colour, fillstyle="none" if is_on_front is None else "full")
            arrow = {"arrowstyle": "-", "color": GREY, "alpha": 0.3, "linewidth": 0.6}
            axes.annotate(
                *(record["names"].get(name, name), (x, y), (1.02, height)),
                textcoords="axes fraction",
                va="center",
                arrowprops=arrow,
                color=colour,
            )
        front = sorted((x, y) for x, y, is_on_front in points.values() if is_on_front)
        axes.plot([x for x, _ in front], [y for _, y in front], "--", color=COLOURS[1], linewidth=1)
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter("{x:,g}")
        axes.xaxis.set_minor_formatter("")
        axes.set_ylim(0, top)
        axes.set_xlabel(f"{COST_HEADS[_AXIS]} a question (logarithmic)")
        axes.set_ylabel("score, %")
    return buffer.getvalue()


def spread_out(heights: Sequence[float], gap: float) -> list[float]:
    """Move ascending heights in [0, 1] apart, so that none is closer than `gap` to the next; all stay in [0, 1].

    Example:
        >>> spread_out([0.5, 0.5, 1.0], 0.25)
        [0.5, 0.75, 1.0]
    """
    gap = min(gap, 1 / max(1, len(heights) - 1))
    placed: list[float] = []
    for height in heights:
        placed.append(max(height, placed[-1] + gap) if placed else height)
    limit = 1.0
    for position in reversed(range(len(placed))):
        placed[position] = min(placed[position], limit)
        limit = placed[position] - gap
    return placed


def flips_table(record: Mapping[str, Any]) -> Iterator[str]:
    """Yield a table of the flipped questions by step, and a list of them."""
    before, after = record["evaluations"]
    yield from (
        "",
        "## What flipped",
        "",
        f"From {before} to {after}, over the questions that both asked; scores are over all of each.",
    )
    yield from (
        "",
        "| pipeline | score before | after | questions | became right | lost before | became wrong | lost after |",
    )
    yield "|---|--:|--:|--:|--:|---|--:|---|"
    for name, row in record["flips"].items():
        won = Counter(flip["before"] for flip in row["flipped"] if flip["after"] == RIGHT)
        lost = Counter(flip["after"] for flip in row["flipped"] if flip["before"] == RIGHT)
        parts = (
            f"{part.total()} | {', '.join(f'{OUTCOMES[key]} {n}' for key, n in part.most_common())}"
            for part in (won, lost)
        )
        scores = record["pipelines"].get(name, {}).get("score", ())  # renamed if its noise differs
        shown = [_spread([score]) for score in scores] if len(scores) == 2 else ["–", "–"]
        yield f"| {_named(name, record)} | {' | '.join(shown)} | {row['asked']} | {' | '.join(parts)} |"
    if not any(row["flipped"] for row in record["flips"].values()):
        yield from ("", "No question flipped.", "")
        return
    yield from (
        "",
        f"The first {_MAX_FLIPS} of each pipeline; compare.json has all. `reflectune answer --evaluation FOLDER",
    )
    yield from ("--question_id ID` shows a trace.", "", "| pipeline | question | before | after |", "|---|---|---|---|")
    for name, row in record["flips"].items():
        for flip in row["flipped"][:_MAX_FLIPS]:
            key = " ".join(flip["id"].split()).translate({ord("`"): "'", ord("|"): "¦"})
            yield f"| {_named(name, record)} | `{key}` | {OUTCOMES[flip['before']]} | {OUTCOMES[flip['after']]} |"
    yield ""


def _named(name: str, record: Mapping[str, Any]) -> str:
    """Return a pipeline's plain name with its technical one."""
    title = record["names"].get(name, name)
    return name if title == name else f"{title} (`{plain(name)}`)"


def seeds_table(record: Mapping[str, Any]) -> Iterator[str]:
    """Yield the table of scores and leads, over seeds if there are several, by part of the questions."""
    parts, against, seeds = record["parts"], record["against"], record["seeds"]
    if seeds > 1:
        yield from ("", "## Over seeds", "", f"Means over {seeds} seeds of training; in brackets the 95 % interval")
        yield f"over seeds and {record['resampled']}, both drawn. Leads are over `{against}`, paired by question and"
        yield "seed."
    else:
        yield from ("", f"## Over {against}", "", f"In brackets the 95 % interval over {record['resampled']}.")
        yield f"Leads are over `{against}`, paired by question."
    yield from ("", f"| pipeline |{''.join(f' {part} | lead |' for part in parts)}", f"|---|{'--:|--:|' * len(parts)}")
    for name in parts[OVERALL]:
        cells = [_spread([rows[name][key]], sign=key == "lead") for rows in parts.values() for key in ("score", "lead")]
        yield f"| {name} | {' | '.join(cells)} |"
    yield ""


def _caption(record: Mapping[str, Any]) -> str:
    counts = max(([score["n"] for score in row["score"] if score] for row in record["pipelines"].values()), key=len)
    baselines = ", ".join(dict.fromkeys(filter(None, record["best_baselines"]))) or "none was run"
    return (
        f"{', '.join(record['evaluations'])}: {', '.join(f'{count:,}' for count in counts)} questions. "
        f"{record['metric']['caption']}. Score in per cent and lead in points are means over evaluations; in brackets "
        "the 95 % interval of one evaluation, or the lowest to the highest of several. The lead is over the best "
        f"baseline of the same evaluation ({baselines}), paired by question. A pipeline is ahead if its interval is "
        "above 0 in every evaluation. Costs are of one scored question: tokens read are those of all prompts, each "
        "from its beginning; tokens computed count a shared prefix once. A pipeline is on the front of a cost if "
        "no other is as good and as cheap, and better in one. Oracles are last and on no front."
    )


def _notes(record: Mapping[str, Any]) -> Iterator[str]:
    pipelines, sets = record["pipelines"], record["question_sets"]
    if len({*record["questions"].values()}) > 1:
        counts = ", ".join(f"{name} {count:,}" for name, count in record["questions"].items())
        yield f"- The evaluations have different numbers of questions and count equally in the means: {counts}."
    partial = [f"{name} ({sets - row['unasked']} of {sets} sets)" for name, row in pipelines.items() if row["unasked"]]
    if partial:
        yield f"- Means over a part of the questions, not comparable with the others: {', '.join(partial)}."
    known = all_recipes()
    leading = {name: plain(name) for name, row in pipelines.items() if any(row["lead"])}
    deeper = [name for name, recipe in leading.items() if recipe in known and known[recipe].has_own_depth]
    if deeper:
        yield f"- Leads not at equal depth, since these pipelines set their own depth: {', '.join(deeper)}."
    for name, row in pipelines.items():
        if row["budget"]:
            yield f"- Budget of {name} (its paper's): {', '.join(_budget(*item) for item in row['budget'].items())}."
    for cost in COSTS:
        if front := [name for name, row in pipelines.items() if row["on_front"][cost]]:
            yield f"- Front by {COST_HEADS[cost]}: {', '.join(front)}."


def _budget(key: str, values: Sequence[float]) -> str:
    paper = PAPER_BUDGETS[key]
    return f"`{key}` {' and '.join(f'{v:g}' for v in values)} ({'not given' if paper is None else f'{paper:g}'})"


def _spread(scores: Sequence[Mapping[str, float] | None], *, sign: bool = False) -> str:
    """Return the mean with its interval, or with the lowest and highest of several evaluations."""
    known = [score for score in scores if score is not None]
    if not known:
        return "–"
    values = [score["value"] for score in known]
    low, high = (known[0]["low"], known[0]["high"]) if len(known) == 1 else (min(values), max(values))
    form = "+.1f" if sign else ".1f"
    return f"{100 * sum(values) / len(values):{form}} ({100 * low:{form}} to {100 * high:{form}})"

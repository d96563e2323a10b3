"""The page of a comparison."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from reflectune.inference.comparing.plot import mean_score
from reflectune.inference.pipelines.iterative import PAPER_BUDGETS
from reflectune.inference.pipelines.registry import all_recipes
from reflectune.inference.report.trajectories import COST_HEADS, endings, number, stop_sentence
from reflectune.inference.scoring.trajectories import COSTS
from reflectune.metrics.reporting.breakdown import OVERALL

NOISE = ", noise "
"""What stands between a pipeline's name and how many irrelevant passages stood among its records."""
ORACLE = "oracle"
"""What the names of pipelines have that are told the entry, or the passage, which others have to find."""


def page(record: Mapping[str, Any]) -> str:
    """A comparison as Markdown: scores, leads and costs, then each iterative pipeline by iteration."""
    heads = {column: head for column, head in record["metric"]["columns"].items() if column != OVERALL}
    named_costs = [COST_HEADS[cost] for cost in COSTS]
    strongest = ", ".join(dict.fromkeys(filter(None, record["best_baselines"])))
    asked = max((_counts(row["score"]) for row in record["pipelines"].values()), key=len)
    times = f"{len(asked)} evaluations of {', '.join(asked)} questions" if len(asked) > 1 else f"{asked[0]} questions"
    lines = [
        "# Pipelines side by side",
        "",
        f"`{record['command']}`, {times}. {record['metric']['caption']}. "
        "Score in per cent and lead in points: mean over evaluations, in brackets the 95 % interval of one evaluation, "
        "or the lowest to the highest of several. The lead is over the best baseline at equal depth "
        f"({strongest}), paired by question; {_own_depth(record['pipelines'])}a pipeline is ahead if its interval is "
        "above 0 in every evaluation. Costs are of one question: tokens read are those of all prompts, each from its "
        "beginning; of tokens computed, what a question's prompts begin with is read once. Oracles, told the entry, "
        "stand last and are on no front.",
        "",
        *_budgets(record.get("budgets", {})),
        f"| {' | '.join(['pipeline', 'score', 'lead', 'against the best baseline', *heads.values(), *named_costs])} |",
        f"|---|--:|--:|---|{'--:|' * (len(heads) + len(COSTS))}",
    ]
    for name, row in _by_score(record["pipelines"]):
        costs = (number(row["costs"][cost]) for cost in COSTS)
        parts = (_spread(row["columns"][column]) for column in heads)
        standing = row.get("standing") or "–"
        cells = [name, _spread(row["score"]), _spread(row["lead"], sign=True), standing, *parts, *costs]
        lines.append(f"| {' | '.join(cells)} |")
    lines += _partly_asked(record)
    if fronts := _fronts(record["pipelines"]):
        lines += ["", f"Neither beaten nor undercut by another: {fronts}."]
    lines += ["", "![Score against cost](compare.svg)", *_noise(record["pipelines"])]
    lines += _stops(record.get("stop_rules", ()))
    lines += _iterations(record["pipelines"])
    return "\n".join(lines) + "\n"


def _budgets(budgets: Mapping[str, Mapping[str, Sequence[float]]]) -> Iterator[str]:
    """MI-RAG's and PMSR's budgets beside their papers', pipelines of equal budgets together; nothing without them."""
    alike: dict[str, list[str]] = {}
    for name, by_key in budgets.items():
        parts = []
        for key, values in by_key.items():
            paper = PAPER_BUDGETS[key]
            published = "not said" if paper is None else f"{paper:g}"
            parts.append(f"`{key}` {' and '.join(f'{value:g}' for value in values)} ({published})")
        alike.setdefault(", ".join(parts), []).append(name)
    for told, names in alike.items():
        yield from (f"Budgets of {', '.join(names)}, in brackets those of their papers: {told}.", "")


def _partly_asked(record: Mapping[str, Any]) -> Iterator[str]:
    """Whose means are over a part of the questions; nothing if all were asked the same."""
    sets = record["question_sets"]
    told = [
        f"{name} ({sets - row['unasked']} of {sets} sets)"
        for name, row in record["pipelines"].items()
        if row["unasked"]
    ]
    if told:
        yield from ("", f"Means over a part of the questions, not to be read beside the others': {', '.join(told)}.")


def _own_depth(pipelines: Mapping[str, Any]) -> str:
    """Which leads are over a baseline that reads another number of entries; "" if none is."""
    known = all_recipes()
    names = dict.fromkeys(name.partition(NOISE)[0] for name, row in pipelines.items() if any(row["lead"]))
    own = [name for name in names if name in known and known[name].has_own_depth]
    if not own:
        return ""
    keys = "keys of their own say how many passages they read" if len(own) > 1 else "its own keys say how much it reads"
    return f"that of {', '.join(own)} is not at equal depth: {keys}, and of which indexes; "


def _counts(scores: Sequence[Mapping[str, Any] | None]) -> list[str]:
    """How many questions each score is over."""
    return [f"{score['n']:,}" for score in scores if score is not None]


def _by_score(pipelines: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """The best first, and oracles behind all others."""
    return sorted(pipelines.items(), key=lambda item: (ORACLE in item[0], -(mean_score(item[1]["score"]) or 0.0)))


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


def _stops(stops: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """What PMSR's stop saves: in words, or as a table of several evaluations."""
    if len(stops) == 1:
        yield from ("", stop_sentence(stops[0]))
    elif stops:
        yield from ("", "## What PMSR's stop rule saves", "")
        yield "| evaluation | iterations with a record | without the rule | saved | points lost | verdict |"
        yield "|--:|--:|--:|--:|--:|---|"
        for place, stop in enumerate(stops, 1):
            counts = f"{number(stop['iterations'])} | {number(stop['fixed'])}"
            spreads = f"{_spread([stop['saved']])} | {_spread([stop['lost']], sign=True)}"
            yield f"| {place} | {counts} | {spreads} | {stop['verdict']} |"


def _iterations(pipelines: Mapping[str, Any]) -> Iterator[str]:
    """A table for each pipeline that iterates, means over evaluations as in the table of scores; the others' ends."""
    walked = {name: row["trajectories"] for name, row in pipelines.items() if row["trajectories"]}
    tables = {
        name: measured for name, measured in walked.items() if any(_changes(each["by_iteration"]) for each in measured)
    }
    for name, measured in tables.items():
        yield from ("", f"## {name} by iteration", "")
        yield "| iteration | article recall so far | record states an answer |"
        yield "|--:|--:|--:|"
        for place in range(max(len(each["by_iteration"]) for each in measured)):
            iterations = [each["by_iteration"][min(place, len(each["by_iteration"]) - 1)] for each in measured]
            recall, record = (_spread([each[kind] for each in iterations]) for kind in ("article_recall", "record"))
            yield f"| {place} | {recall} | {record} |"
        mean = sum(each["iterations"] for each in measured) / len(measured)
        yield f"\n{number(mean)} iterations on average ({endings(measured)}). {_gains(measured)}".rstrip()
    if others := walked.keys() - tables.keys():
        yield from ("", "## How the others end", "")
        yield from (f"- {name}: {endings(measured)}." for name, measured in walked.items() if name in others)


def _changes(iterations: Sequence[Mapping[str, Any]]) -> bool:
    """Whether there is anything to show by iteration: an agent that searches once finds no more afterwards."""
    return len(iterations) > 1 and (iterations[0]["record"] is not None or iterations[0] != iterations[-1])


def _gains(measured: Sequence[Mapping[str, Any]]) -> str:
    """What further iterations and a second knowledge base bring, paired by question, and whether the model asks."""
    gained = [each.get("gained") or {} for each in measured]
    told = {
        "the last iteration less the first, article recall": ([each.get("article_recall") for each in gained], True),
        "records that state an answer": ([each.get("record") for each in gained], True),
        "recall of all knowledge bases less the best alone": ([each.get("bases") for each in gained], True),
        "later searches with a query that the model wrote": ([each.get("asked") for each in measured], False),
    }
    parts = [f"{name} {_spread(scores, sign=sign)}" for name, (scores, sign) in told.items() if any(scores)]
    return f"In points or per cent: {'; '.join(parts)}." if parts else ""

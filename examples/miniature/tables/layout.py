"""Tables and verdicts as Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Record = Mapping[str, Any]


def markdown(record: Record) -> str:
    """The content of tables.json as Markdown."""
    parts = [f"# {record['title']}", "", f"`{record['command']}`", "", record["lead"], ""]
    for table in record["tables"]:
        parts += [f"## {table['title']}", "", *([table["note"], ""] if table["note"] else []), *rows(table), ""]
        parts += [*claims(table["claims"]), ""] if table["claims"] else []
    return "\n".join([*parts, "## Minutes", "", *minutes(record["minutes"]), ""])


def rows(table: Record) -> list[str]:
    """A table: mean ± standard deviation over seeds in per cent.

    Where the paper has such rows: their order in the paper and here, 1 for the highest; equal ones share a rank.
    `fell back`: the share of questions where nothing was relevant, or MCT's reply was malformed.
    """
    has_ranks = any(row["paper_rank"] is not None for row in table["rows"])
    columns = ["accuracy", *(["visual"] if table["visual"] else []), "retrieved", "passages", "fell back"]
    head = ["", *(["paper's rank", "rank"] if has_ranks else []), *columns]
    lines = [_line(head), _line(["---", *["--:"] * (len(head) - 1)])]
    for row in table["rows"]:
        cells = [row["name"], *([_rank(row["paper_rank"]), _rank(row["rank"])] if has_ranks else [])]
        cells.append(_percent(row["accuracy"]))
        cells += [_percent(row["visual"])] if table["visual"] else []
        cells += [_percent(row["retrieval_rate"]), _number(row["passages_read"]), _percent(row["fell_back"])]
        lines.append(_line(cells))
    return lines


def claims(records: Sequence[Record]) -> list[str]:
    """One line a claim: verdict, words, and the smallest lead that it rests on."""
    lines = [_line(["claim", "verdict", "lead, in points (95 % interval)"]), _line(["---", "---", "---"])]
    for claim in records:
        least = min(claim["sums"], key=lambda lead: float(lead["value"]), default=None)
        told = ""
        if least is not None:
            told = f"{100 * least['value']:+.1f} ({100 * least['low']:+.1f} to {100 * least['high']:+.1f})"
            told += f", the smallest of {len(claim['sums'])}: {_sum(least['of'])}" if len(claim["sums"]) > 1 else ""
        lines.append(_line([claim["text"], f"**{claim['verdict']}**", told]))
    return lines


def minutes(records: Sequence[Record]) -> list[str]:
    """One line a stage: what was expected, and what it took."""
    lines = [_line(["stage", "estimated", "real", ""]), _line(["---", "--:", "--:", "---"])]
    for stage in records:
        told = "finished before" if stage["reused"] else ""
        lines.append(_line([stage["name"], f"{stage['estimated']:.1f}", f"{stage['real']:.1f}", told]))
    total = [sum(float(stage[name]) for stage in records) for name in ("estimated", "real")]
    return [*lines, _line(["in all", *(f"{value:.1f}" for value in total), ""])]


def _sum(terms: Sequence[Sequence[Any]]) -> str:
    """A sum of cells in words, `full over rel`: their points, or their models where the point is the same for all."""
    column = 1 if len({point for _, point, _ in terms}) > 1 else 0
    sides = [" + ".join(term[column] for term in terms if (term[2] > 0) is ahead) for ahead in (True, False)]
    return f"{sides[0]} over {sides[1]}"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _rank(place: int | None) -> str:
    return "" if place is None else str(place)


def _percent(spread: Record | None) -> str:
    return "–" if spread is None else f"{100 * spread['mean']:.1f} ± {100 * spread['sd']:.1f}"


def _number(spread: Record | None) -> str:
    return "–" if spread is None else f"{spread['mean']:.1f}"

"""Tables and verdicts as Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Record = Mapping[str, Any]


def markdown(record: Record) -> str:
    """Return the content of tables.json as Markdown."""
    parts = [f"# {record['title']}", "", f"`{record['command']}`", "", record["lead"], ""]
    for table in record["tables"]:
        parts += [f"## {table['title']}", "", *([table["note"], ""] if table["note"] else []), *rows(table), ""]
        parts += [*claims(table["claims"]), ""] if table["claims"] else []
    return "\n".join(parts)


def rows(table: Record) -> list[str]:
    """Return the lines of a table: mean ± standard deviation over seeds in per cent.

    Rows that the paper has, too, have its rank and ours, 1 for the highest. `fell back` is the share of questions where
    nothing was relevant, or MCT's reply was malformed.
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
    """Return a line per claim: text, verdict, and the smallest lead that it rests on."""
    lines = [_line(["claim", "verdict", "lead, in points (95 % interval)"]), _line(["---", "---", "---"])]
    for claim in records:
        least = min(claim["sums"], key=lambda total: float(total["value"]), default=None)
        lead = ""
        if least is not None:
            lead = f"{100 * least['value']:+.1f} ({100 * least['low']:+.1f} to {100 * least['high']:+.1f})"
            lead += f", the smallest of {len(claim['sums'])}: {_sum(least['of'])}" if len(claim["sums"]) > 1 else ""
        lines.append(_line([claim["text"], f"**{claim['verdict']}**", lead]))
    return lines


def _sum(terms: Sequence[Sequence[Any]]) -> str:
    """Return a sum of cells in words, `full over rel`: their points, or their models if all points are equal."""
    column = 1 if len({point for _, point, _ in terms}) > 1 else 0
    sides = [" + ".join(term[column] for term in terms if (term[2] > 0) is ahead) for ahead in (True, False)]
    return f"{sides[0]} over {sides[1]}"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _rank(rank: int | None) -> str:
    return "" if rank is None else str(rank)


def _percent(spread: Record | None) -> str:
    return "–" if spread is None else f"{100 * spread['mean']:.1f} ± {100 * spread['sd']:.1f}"


def _number(spread: Record | None) -> str:
    return "–" if spread is None else f"{spread['mean']:.1f}"

"""A paper's tables and claims, as rows and orders of rows, and what the measured answers say of them."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from reflectune.core.types import Question
from reflectune.inference.grid.comparisons import Answers, Comparison, answers, compare, verdict_of
from reflectune.inference.grid.outcomes import Results
from reflectune.inference.scoring.paper_numbers import ranks
from reflectune.inference.scoring.scores import Measure

Cell = tuple[str, str]
"""Which model (by the name of its training) at which point."""

Scope = Literal["official", "visual"]
Found = Mapping[str, Sequence[Results]]
"""By model, one item a seed."""

SCOPES: Mapping[Scope, Callable[[Measure, Sequence[Question]], list[Question]]] = {
    "official": Measure.official,
    "visual": Measure.visual,
}


@dataclass(frozen=True)
class Row:
    """A row of a table.

    Attributes:
        name: What it is called.
        cell: What was measured.
        paper: The paper's number, which decides its rank and is not shown; None if it has none.
    """

    name: str
    cell: Cell
    paper: float | None = None


@dataclass(frozen=True)
class Claim:
    """What a paper says of its rows, as sums that it says are above 0.

    Attributes:
        text: The claim in words.
        sums: Each is weights of cells; `{a: 1, b: -1}` says that a is ahead of b. The claim holds if all are above 0.
            None: nothing here can measure it; `text` says why.
        scope: Which questions it is about.
    """

    text: str
    sums: Sequence[Mapping[Cell, float]] = ()
    scope: Scope = "official"


@dataclass(frozen=True)
class Table:
    """A table of a paper in miniature.

    Attributes:
        title: Its title, with the paper's number of it.
        rows: Its rows.
        claims: What the paper concludes from it.
        note: What the reader must know; a function where it can be told only when everything is built.
        visual: Whether it has a column for visual-dependent questions.
    """

    title: str
    rows: Sequence[Row]
    claims: Sequence[Claim] = ()
    note: str | Callable[[], str] = ""
    visual: bool = field(default=False)


def ahead(better: Cell, *others: Cell) -> list[dict[Cell, float]]:
    """The sums that say that a cell is ahead of each of the others."""
    return [{better: 1.0, other: -1.0} for other in others if other != better]


def measure(table: Table, found: Found, seed: int) -> dict[str, Any]:
    """A table's numbers and verdicts, as JSON."""
    return {
        "title": table.title,
        "note": table.note() if callable(table.note) else table.note,
        "visual": table.visual,
        "rows": _ranked(table.rows, [_row(row, found) for row in table.rows]),
        "claims": [_claim(claim, found, seed) for claim in table.claims],
    }


def _row(row: Row, found: Found) -> dict[str, Any]:
    model, point = row.cell
    return {
        "name": row.name,
        "accuracy": _spread([own.score for own in _answers(row.cell, found, "official") if own.ids]),
        "visual": _spread([own.score for own in _answers(row.cell, found, "visual") if own.ids]),
        "retrieval_rate": _spread(_shares(found[model], point, "retrieved")),
        "passages_read": _spread(_shares(found[model], point, "read")),
        "fell_back": _spread(_fallbacks(found[model], point)),
    }


def _ranked(rows: Sequence[Row], records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The records with the paper's rank of each row, and ours among the rows that the paper has."""
    paper = ranks({place: row.paper for place, row in enumerate(rows) if row.paper is not None})
    accuracies = {place: records[place]["accuracy"] for place in paper}
    measured = ranks({place: round(100 * own["mean"], 1) for place, own in accuracies.items() if own is not None})
    return [
        {**record, "paper_rank": paper.get(place), "rank": measured.get(place)} for place, record in enumerate(records)
    ]


def _claim(claim: Claim, found: Found, seed: int) -> dict[str, Any]:
    compared = [_compare(own, found, claim.scope, seed) for own in claim.sums]
    return {
        "text": claim.text,
        "scope": claim.scope,
        "verdict": verdict_of(compared),
        "sums": [
            {
                "of": [[*cell, weight] for cell, weight in own.items()],
                **asdict(comparison),
                "verdict": comparison.verdict,
            }
            for own, comparison in zip(claim.sums, compared, strict=True)
        ],
    }


def _compare(weights: Mapping[Cell, float], found: Found, scope: Scope, seed: int) -> Comparison:
    return compare([(weight, _answers(cell, found, scope)) for cell, weight in weights.items()], seed)


def _answers(cell: Cell, found: Found, scope: Scope) -> list[Answers]:
    model, point = cell
    made = []
    for results in found[model]:
        questions = SCOPES[scope](results.measure, results.taken(point, results.questions))
        right = results.right(point, questions)
        by_split = scope == "official" and results.measure.metric == "infoseek"
        made.append(answers(questions, right, source=results.source, by_split=by_split))
    return made


def _shares(results: Sequence[Results], point: str, name: str) -> list[float]:
    found = [own.share(point, name, own.measure.official(own.taken(point, own.questions))) for own in results]
    return [value for value in found if value is not None]


def _fallbacks(results: Sequence[Results], point: str) -> list[float]:
    found = [own.troubled(point, own.measure.official(own.taken(point, own.questions))) for own in results]
    return [value for value in found if value is not None]


def _spread(values: Sequence[float]) -> dict[str, Any] | None:
    """Mean and standard deviation over seeds; None if there is nothing."""
    if not values:
        return None
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    return {"mean": statistics.mean(values), "sd": deviation, "seeds": list(values)}

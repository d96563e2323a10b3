"""A paper's tables and claims, as rows and orders of rows, and what the measured answers say of them."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

import yaml

from reflectune.core.types import Question
from reflectune.examples.miniature.tables.comparisons import Answers, Comparison, answers, compare, verdict_of
from reflectune.inference.scoring.scores import Measure
from reflectune.inference.sweeps.outcomes import Results

Name = TypeVar("Name", bound=Hashable)
Cell = tuple[str, str]
"""Which model (by the name of its training) at which point."""

Scope = Literal["official", "visual"]
ResultsByModel = Mapping[str, Sequence[Results]]
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


def paper_column(paper: str, table: str) -> dict[str, float]:
    """Return the overall scores of a paper's table by row, which our tables rank by."""
    text = Path(__file__).with_name("paper_numbers.yaml").read_text(encoding="utf-8")
    column: dict[str, float] = yaml.safe_load(text)[paper][table]
    return column


def ranks(values: Mapping[Name, float]) -> dict[Name, int]:
    """Return the rank of each value, 1 for the highest. Equal values share a rank, and the next rank is left out.

    Example:
        >>> ranks({"a": 39.2, "b": 40.2, "c": 39.2, "d": 36.7})
        {'a': 2, 'b': 1, 'c': 2, 'd': 4}
    """
    return {name: 1 + sum(other > value for other in values.values()) for name, value in values.items()}


def ahead(better: Cell, *others: Cell) -> list[dict[Cell, float]]:
    """The sums that say that a cell is ahead of each of the others."""
    return [{better: 1.0, other: -1.0} for other in others if other != better]


def measure(table: Table, results_by_model: ResultsByModel, seed: int) -> dict[str, Any]:
    """A table's numbers and verdicts, as JSON."""
    return {
        "title": table.title,
        "note": table.note() if callable(table.note) else table.note,
        "visual": table.visual,
        "rows": _ranked(table.rows, [_row(row, results_by_model) for row in table.rows]),
        "claims": [_claim(claim, results_by_model, seed) for claim in table.claims],
    }


def _row(row: Row, results_by_model: ResultsByModel) -> dict[str, Any]:
    model, point = row.cell
    return {
        "name": row.name,
        "accuracy": _spread(
            [
                seed_answers.score
                for seed_answers in _answers(row.cell, results_by_model, "official")
                if seed_answers.ids
            ]
        ),
        "visual": _spread(
            [seed_answers.score for seed_answers in _answers(row.cell, results_by_model, "visual") if seed_answers.ids]
        ),
        "retrieval_rate": _spread(_shares(results_by_model[model], point, "retrieved")),
        "passages_read": _spread(_shares(results_by_model[model], point, "read")),
        "fell_back": _spread(_fallbacks(results_by_model[model], point)),
    }


def _ranked(rows: Sequence[Row], records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The records with the paper's rank of each row, and ours among the rows that the paper has."""
    paper = ranks({place: row.paper for place, row in enumerate(rows) if row.paper is not None})
    accuracies = {place: records[place]["accuracy"] for place in paper}
    measured = ranks(
        {place: round(100 * accuracy["mean"], 1) for place, accuracy in accuracies.items() if accuracy is not None}
    )
    return [
        {**record, "paper_rank": paper.get(place), "rank": measured.get(place)} for place, record in enumerate(records)
    ]


def _claim(claim: Claim, results_by_model: ResultsByModel, seed: int) -> dict[str, Any]:
    compared = [_compare(weights, results_by_model, claim.scope, seed) for weights in claim.sums]
    return {
        "text": claim.text,
        "scope": claim.scope,
        "verdict": verdict_of(compared),
        "sums": [
            {
                "of": [[*cell, weight] for cell, weight in weights.items()],
                **asdict(comparison),
                "verdict": comparison.verdict,
            }
            for weights, comparison in zip(claim.sums, compared, strict=True)
        ],
    }


def _compare(weights: Mapping[Cell, float], results_by_model: ResultsByModel, scope: Scope, seed: int) -> Comparison:
    return compare([(weight, _answers(cell, results_by_model, scope)) for cell, weight in weights.items()], seed)


def _answers(cell: Cell, results_by_model: ResultsByModel, scope: Scope) -> list[Answers]:
    model, point = cell
    made = []
    for results in results_by_model[model]:
        questions = SCOPES[scope](results.measure, results.taken(point, results.questions))
        right = results.right(point, questions)
        by_split = scope == "official" and results.measure.metric == "infoseek"
        made.append(answers(questions, right, source=results.source, by_split=by_split))
    return made


def _shares(results: Sequence[Results], point: str, name: str) -> list[float]:
    shares = [
        seed_results.share(
            point, name, seed_results.measure.official(seed_results.taken(point, seed_results.questions))
        )
        for seed_results in results
    ]
    return [value for value in shares if value is not None]


def _fallbacks(results: Sequence[Results], point: str) -> list[float]:
    shares = [
        seed_results.troubled(point, seed_results.measure.official(seed_results.taken(point, seed_results.questions)))
        for seed_results in results
    ]
    return [value for value in shares if value is not None]


def _spread(values: Sequence[float]) -> dict[str, Any] | None:
    """Mean and standard deviation over seeds; None if there is nothing."""
    if not values:
        return None
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    return {"mean": statistics.mean(values), "sd": deviation, "seeds": list(values)}

"""Tables and claims of a paper, and their verdicts by the measured answers."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import yaml

from reflectune.core.types import Question
from reflectune.examples.miniature.tables.comparisons import Comparison, SeedAnswers, answers, compare, verdict_of
from reflectune.inference.scoring.scores import TraceScorer
from reflectune.inference.sweeps.outcomes import GridOutcomes

Name = TypeVar("Name", bound=Hashable)
MeasuredCell = tuple[str, str]
"""A model, by the name of its training, and a grid point."""

Scope = Literal["official", "visual"]
OutcomesByModel = Mapping[str, Sequence[GridOutcomes]]
"""By model, one item a seed."""

SCOPES: Mapping[Scope, Callable[[TraceScorer, Sequence[Question]], list[Question]]] = {
    "official": TraceScorer.official,
    "visual": TraceScorer.visual,
}


@dataclass(frozen=True)
class TableRow:
    """A row of a table.

    Attributes:
        name: Its name.
        cell: The model and point that it shows.
        paper: The paper's number, which decides its rank and is not shown; None if it has none.
    """

    name: str
    cell: MeasuredCell
    paper: float | None = None


@dataclass(frozen=True)
class Claim:
    """A paper's claim about its rows, as sums that are above 0 if it holds.

    Attributes:
        text: The claim in words.
        sums: Weights of cells; `{a: 1, b: -1}` means that a is ahead of b. Empty if the miniature can't measure it.
        scope: Questions that it is about.
    """

    text: str
    sums: Sequence[Mapping[MeasuredCell, float]] = ()
    scope: Scope = "official"


@dataclass(frozen=True)
class PaperTable:
    """A table of a paper in miniature.

    Attributes:
        title: Its title, with the paper's number of it.
        rows: Its rows.
        claims: The paper's conclusions.
        note: Caption; a function if it depends on finished stages.
        visual: True if it has a column for visual questions.
    """

    title: str
    rows: Sequence[TableRow]
    claims: Sequence[Claim] = ()
    note: str | Callable[[], str] = ""
    visual: bool = False


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


def ahead(better: MeasuredCell, *others: MeasuredCell) -> list[dict[MeasuredCell, float]]:
    """Return sums that are above 0 if a cell is ahead of each of the others."""
    return [{better: 1.0, other: -1.0} for other in others if other != better]


def measure(table: PaperTable, outcomes_by_model: OutcomesByModel, seed: int) -> dict[str, Any]:
    """Return a table's numbers and verdicts, as JSON."""
    return {
        "title": table.title,
        "note": table.note() if callable(table.note) else table.note,
        "visual": table.visual,
        "rows": _ranked(table.rows, [_row(row, outcomes_by_model) for row in table.rows]),
        "claims": [_claim(claim, outcomes_by_model, seed) for claim in table.claims],
    }


def _row(row: TableRow, outcomes_by_model: OutcomesByModel) -> dict[str, Any]:
    """Return a row's name and its mean scores and shares over seeds."""
    model, point = row.cell
    answered = [
        (outcomes, outcomes.measure.official(outcomes.taken(point, outcomes.questions)))
        for outcomes in outcomes_by_model[model]
    ]
    return {
        "name": row.name,
        "accuracy": _spread(_scores(row.cell, outcomes_by_model, "official")),
        "visual": _spread(_scores(row.cell, outcomes_by_model, "visual")),
        "retrieval_rate": _spread([outcomes.share(point, "retrieved", asked) for outcomes, asked in answered]),
        "passages_read": _spread([outcomes.share(point, "read", asked) for outcomes, asked in answered]),
        "fell_back": _spread([outcomes.troubled(point, asked) for outcomes, asked in answered]),
    }


def _ranked(rows: Sequence[TableRow], records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the records with the paper's rank of each row, and ours among the rows that the paper has."""
    paper = ranks({position: row.paper for position, row in enumerate(rows) if row.paper is not None})
    accuracies = {position: records[position]["accuracy"] for position in paper}
    measured = ranks(
        {
            position: round(100 * accuracy["mean"], 1)
            for position, accuracy in accuracies.items()
            if accuracy is not None
        }
    )
    return [
        {**record, "paper_rank": paper.get(position), "rank": measured.get(position)}
        for position, record in enumerate(records)
    ]


def _claim(claim: Claim, outcomes_by_model: OutcomesByModel, seed: int) -> dict[str, Any]:
    compared = [_compare(weights, outcomes_by_model, claim.scope, seed) for weights in claim.sums]
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


def _compare(
    weights: Mapping[MeasuredCell, float], outcomes_by_model: OutcomesByModel, scope: Scope, seed: int
) -> Comparison:
    return compare([(weight, _answers(cell, outcomes_by_model, scope)) for cell, weight in weights.items()], seed)


def _answers(cell: MeasuredCell, outcomes_by_model: OutcomesByModel, scope: Scope) -> list[SeedAnswers]:
    model, point = cell
    made = []
    for results in outcomes_by_model[model]:
        questions = SCOPES[scope](results.measure, results.taken(point, results.questions))
        right = results.right(point, questions)
        by_split = scope == "official" and results.measure.metric == "infoseek"
        made.append(answers(questions, right, source=results.source, by_split=by_split))
    return made


def _scores(cell: MeasuredCell, outcomes_by_model: OutcomesByModel, scope: Scope) -> list[float]:
    return [seed_answers.score for seed_answers in _answers(cell, outcomes_by_model, scope) if seed_answers.ids]


def _spread(values: Sequence[float | None]) -> dict[str, Any] | None:
    """Return mean and standard deviation over the seeds that have a value; None if no seed has one."""
    measured = [value for value in values if value is not None]
    if not measured:
        return None
    deviation = statistics.stdev(measured) if len(measured) > 1 else 0.0
    return {"mean": statistics.mean(measured), "sd": deviation, "seeds": measured}

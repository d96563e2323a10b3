"""The tables of a paper, of what a reproduction's steps measured, with the paper's numbers beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from reflectune.core.durable import read_json
from reflectune.inference.reproduction.records import finished
from reflectune.inference.reproduction.steps import Step
from reflectune.inference.scoring.paper_numbers import TABLES, PaperTable

_KEYS: Final = ("paper", "columns", "rows", "note")
_PLACES: Final[Mapping[str, str]] = {
    "inference.evaluate": "pipeline",
    "inference.sweep": "at",
    "inference.recall": "title_weight",
}
"""By the module of a step, the key of a row that says where in its output the row's numbers are."""
_NONE: Final = "–"
_PILOT: Final = (
    "**A rehearsal**: of other models, or of generated or fewer questions. The papers' numbers are left out, since "
    "these say nothing beside them.\n"
)


def table_problems(tables: Mapping[str, Any], modules: Mapping[str, str]) -> list[str]:
    """What is wrong with the tables of a list, one sentence each.

    Args:
        tables: By title, as the YAML file has them.
        modules: The module of each step.
    """
    issues = []
    for title, table in tables.items():
        where = f"`tables`: {title}"
        if not isinstance(table, dict) or not set(table) <= set(_KEYS) or not {"columns", "rows"} <= set(table):
            issues.append(f"{where} needs a mapping with columns and rows, and may have paper and note")
            continue
        if (source := table.get("paper")) and paper_table(source) is None:
            issues.append(f"{where}: no paper's table is {source}; see docs/paper_numbers.md")
        for name, row in table["rows"].items():
            module = modules.get(row.get("step", ""), "") if isinstance(row, dict) else ""
            if module not in _PLACES or set(row) != {"step", _PLACES[module]}:
                issues.append(f"{where}: {name} needs a `step` that evaluates, and its {' or '.join(_PLACES.values())}")
    return issues


def paper_table(source: str) -> PaperTable | None:
    """The table of a paper by its arXiv id and number, e.g. `arXiv 2411.15041, Table 5`."""
    return next((table for table in TABLES if table.source.split(";")[0] == source), None)


def page(tables: Mapping[str, Any], steps: Sequence[Step], data: Path, *, pilot: bool) -> str:
    """All tables as Markdown; a number that isn't measured yet is a dash.

    Args:
        tables: By title, as the YAML file has them.
        steps: All steps of the list, but those that are left out: their rows are left out too.
        data: The folder that their paths start from.
        pilot: Whether it is a rehearsal, so that the paper's numbers are left out.
    """
    outputs = {step.name: _output(step, data) for step in steps if step.module in _PLACES}
    parts = [_PILOT] if pilot else []
    for title, table in tables.items():
        if not any(row["step"] in outputs for row in table["rows"].values()):
            continue
        source = None if pilot else paper_table(str(table.get("paper", "")))
        note = f"{table['note'].strip()}\n" if table.get("note") else ""
        parts.append("\n".join([f"# {title}\n", *([note] if note else []), *_rows(table, outputs, source), ""]))
    return "\n".join(parts)


def _rows(table: Mapping[str, Any], outputs: Mapping[str, Any], source: PaperTable | None) -> list[str]:
    columns, digits = table["columns"], source.digits if source else 1
    papers = [f"the paper's: {head}" for head in source.columns] if source else []
    lines = [_line(["", *columns, *papers]), _line(["---", *["--:"] * (len(columns) + len(papers))])]
    for name, row in table["rows"].items():
        if row["step"] not in outputs:
            continue
        measured = [number(outputs[row["step"]], row, column) for column in columns.values()]
        printed = (source.rows.get(name) or (None,) * len(papers)) if source else ()
        cells = [_NONE if value is None else f"{100 * value:.{digits}f}" for value in measured]
        cells += ["" if value is None else f"{value:.{digits}f}" for value in printed]
        lines.append(_line([name, *cells]))
    return lines


def number(output: Any, row: Mapping[str, Any], column: str) -> float | None:
    """A number of a table, from 0 to 1, of what a step wrote; None if it has none.

    Args:
        output: Its metrics.json, sweep.json or figures of recall.
        row: Says where in it: `pipeline`, the settings `at` a point of a sweep, or `title_weight`.
        column: The score's name there.
    """
    if not isinstance(output, dict):
        return None
    if "pipeline" in row:
        return _value(output.get("pipelines", {}).get(row["pipeline"], {}).get(column))
    if "at" in row:
        wanted = {**output.get("start", {}), **row["at"]}
        texts = {key: str(value) for key, value in wanted.items()}
        points = output.get("points", [])
        point: dict[str, Any] = next(
            (one for one in points if {key: str(value) for key, value in one["settings"].items()} == texts), {}
        )
        return _value(point.get("accuracy" if column == "overall" else column))
    return _over_splits(output, f"{row['title_weight']:g}", column)


def _over_splits(output: Mapping[str, Any], weight: str, column: str) -> float | None:
    """A recall over the questions of all splits."""
    scores = [split.get("weights", {}).get(weight, {}).get(column) for split in output.values()]
    counted = [(score["value"], score["n"]) for score in scores if score]
    total = sum(count for _, count in counted)
    return sum(value * count for value, count in counted) / total if total else None


def _value(score: Any) -> float | None:
    return score["value"] if isinstance(score, dict) and score.get("value") is not None else None


def _output(step: Step, data: Path) -> Any:
    path = finished(step, data)
    return read_json(path, "what a step measured") if path else None


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"

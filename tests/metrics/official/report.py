"""InfoSeek's official report of rows of its own files, to compare scores with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from reflectune.metrics.official.infoseek import exact_match, numerical, percent_report


def official_report(
    predictions: Sequence[Mapping[str, str]],
    references: Sequence[Mapping[str, Any]],
    qtypes: Sequence[Mapping[str, str]],
) -> dict[str, Any]:
    """Return the output of the official script for these files' rows: percentages with two decimals."""
    types = {row["data_id"]: row["question_type"].lower() for row in qtypes}
    truth = {row["data_id"]: (row["data_split"], *_official_truth(row, types[row["data_id"]])) for row in references}
    scored = []
    for row in predictions:
        if row["data_id"] in truth:
            split, kind, answer = truth[row["data_id"]]
            right = numerical(row["prediction"], answer) if kind == "num" else exact_match(row["prediction"], answer)
            scored.append((split, kind, right))
    return percent_report(scored)


def _official_truth(row: Mapping[str, Any], question_type: str) -> tuple[str, Any]:
    """Return (time, num or string; the range or the accepted answers) of a reference row."""
    if question_type != "numerical":
        return ("time" if question_type == "time" else "string"), row["answer_eval"]
    given = row["answer_eval"]
    return "num", (given[0] if isinstance(given, list) else given)["range"][:2]

"""Replays what the official programs printed: `python tests/metrics/replay.py CASES.json [--bem FOLDER]`.

A case is `{"metric", "inputs", "expected", "note"?}`; `expected` is `{"error", "message"}` where the official code
raises. A `.jsonl` file, such as `official_pairs.jsonl` next to this script, has one pair a line: `{"metric", "given",
"printed", "quirk"?}`. Names every failure and every case that can't be run here, and closes with `N passed, N failed`.
"""

import argparse
import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from reflectune.metrics.judging import bem, cover
from reflectune.metrics.official import evqa, infoseek, vqa
from reflectune.metrics.reporting import retrieval

Case = Mapping[str, Any]

NEEDS_BEM = "evqa.evaluate_example_real_bem"


@dataclass(frozen=True)
class Outcome:
    """What became of one case: `passed`, `failed` or `not run`, and why if it did not pass."""

    status: str
    reason: str = ""


def replay(case: Case, bem_logits: evqa.BemLogits | None = None) -> Outcome:
    """Run one case.

    Args:
        case: The case.
        bem_logits: BEM itself, for the cases that need its weights; they are not run without it.
    """
    name = case["metric"]
    if name == NEEDS_BEM and bem_logits is None:
        return Outcome("not run", "it needs BEM's weights (--bem)")
    if name != NEEDS_BEM and name not in METRICS:
        return Outcome("failed", f"no metric is known as {name}")
    metric = _with_bem(bem_logits) if bem_logits is not None and name == NEEDS_BEM else METRICS[name]
    printed, expected = _printed(metric, case["inputs"]), case["expected"]
    return Outcome("passed") if printed == expected else Outcome("failed", f"expected {expected!r}, found {printed!r}")


def read_cases(path: Path) -> list[Case]:
    """The cases of a file; ValueError if it holds none."""
    if path.suffix == ".jsonl":
        return read_pairs(path)
    cases = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(cases, list) or not cases or not all(isinstance(case, dict) for case in cases):
        raise ValueError(f"{path} holds no list of cases")
    return cases


def read_pairs(path: Path) -> list[Case]:
    """The pairs of a file, one a line, as cases; ValueError if there is none, or one lacks a field."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    if not rows or not all(isinstance(row, dict) and {"metric", "given", "printed"} <= set(row) for row in rows):
        raise ValueError(f"{path} should hold a pair a line, with metric, given and printed")
    names = {"metric": "metric", "given": "inputs", "printed": "expected", "quirk": "note"}
    return [{names[field]: value for field, value in row.items()} for row in rows]


def label(case: Case, number: int) -> str:
    """What a case is called: its number from 0, its metric, its note."""
    return f"case {number}, {case['metric']}" + (f" ({case['note']})" if case.get("note") else "")


def main() -> None:
    """Replay a file; exit status 1 if a case fails."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("cases", type=Path)
    parser.add_argument("--bem", help="folder or hub id of a converted BEM, for the cases that need its weights")
    arguments = parser.parse_args()
    logits = bem.load_bem(arguments.bem) if arguments.bem else None
    try:
        cases = read_cases(arguments.cases)
    except (OSError, ValueError) as error:
        sys.exit(f"error: {arguments.cases} can't be read as cases: {error}")
    outcomes = [replay(case, logits) for case in cases]
    for number, (case, outcome) in enumerate(zip(cases, outcomes, strict=True)):
        if outcome.status != "passed":
            print(f"{outcome.status.upper()}: {label(case, number)}: {outcome.reason}")
    count = {
        status: sum(outcome.status == status for outcome in outcomes) for status in ("passed", "failed", "not run")
    }
    if count["not run"]:
        print(f"{count['not run']} not run, counted neither as passed nor as failed")
    print(f"{count['passed']} passed, {count['failed']} failed")
    sys.exit(1 if count["failed"] else 0)


def _printed(metric: Callable[..., Any], inputs: Mapping[str, Any]) -> Any:
    """The metric's value as JSON would hold it; what it raises, as a case holds it."""
    try:
        value = metric(**inputs)
    except Exception as error:
        return {"error": type(error).__name__, "message": str(error)}
    return json.loads(json.dumps(value, default=_plain))


def _plain(value: Any) -> Any:
    if isinstance(value, (np.generic, np.ndarray)):
        return value.tolist()
    raise TypeError(f"a metric gave a {type(value).__name__}, which JSON can't hold")


def _of_fixed_logits(bem_logits: list[float]) -> evqa.BemLogits:
    """What the cases were printed with: a word a piece, padded to 512 with no truncation, then fixed logits."""

    def logits(*segments: str) -> list[float]:
        pieces = 1 + sum(len(segment.split()) + 1 for segment in segments)
        np.zeros(bem.LONGEST - pieces)
        return bem_logits

    return logits


def _evaluate(bem_logits: evqa.BemLogits, reference_list: list[str], **inputs: str) -> float:
    return evqa.evaluate_example(references=reference_list, bem_logits=bem_logits, **inputs)


def _with_fixed_logits(bem_logits: list[float], **inputs: Any) -> float:
    return _evaluate(_of_fixed_logits(bem_logits), **inputs)


def _with_bem(bem_logits: evqa.BemLogits) -> Callable[..., float]:
    return lambda **inputs: _evaluate(bem_logits, **inputs)


METRICS: dict[str, Callable[..., Any]] = {
    "infoseek.normalize_answer": infoseek.normalize_answer,
    "infoseek.string_exact_match": infoseek.exact_match,
    "infoseek.time_exact_match": infoseek.exact_match,
    "infoseek.parse_numerical": infoseek.parse_numerical,
    "infoseek.clean_str_range": infoseek.clean_str_range,
    "infoseek.numerical": infoseek.numerical,
    "infoseek.numerical_range": infoseek.numerical_range,
    "infoseek.range_iou": infoseek.range_iou,
    "infoseek.harmonic_mean": lambda values: infoseek.harmonic_mean(*values),
    "infoseek.evaluate": infoseek.official_report,
    "evqa.preprocess_answer": evqa.preprocess_answer,
    "evqa.single_exact_match": evqa.single_exact_match,
    "evqa.multi_exact_match": evqa.multi_exact_match,
    "evqa.list_iou": evqa.list_iou,
    "evqa.bem_input_segments": evqa.bem_segments,
    "evqa.evaluate_example_fixed_bem_logits": _with_fixed_logits,
    "vqa.soft_accuracy": lambda **inputs: vqa.percent(vqa.soft_accuracy(**inputs)),
    "selfrag.match": cover.match,
    "echosight.recall_at_k": retrieval.recall_at_k,
}


if __name__ == "__main__":
    main()

"""The table of lmms-eval's runs, and runs that it refuses to compare."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reflectune.core.errors import UserError
from reflectune.examples.lmms_eval.table import read_runs, share_interval, table


def write_run(
    folder: Path,
    mode: str,
    opened: tuple[bool, ...] | None = None,
    *,
    accuracy: float = 0.5,
    date: str = "20260101_000000",
    resps: tuple[str, ...] = ("yes", "no"),
    targets: tuple[str, ...] = ("yes", "yes"),
    samples: bool = True,
    **decision: Any,
) -> None:
    """Write a run's files in lmms-eval's layout."""
    folder.mkdir(parents=True, exist_ok=True)
    scores = {"alias": "pope", "accuracy,none": accuracy, "accuracy_stderr,none": 0.01, "submission,none": None}
    scores |= {"accuracy_stderr_clt,none": 0.02}
    config = {"model": "reflectune", "model_args": f"config=a.yaml,mode={mode}"}
    (folder / f"{date}_results.json").write_text(json.dumps({"results": {"pope": scores}, "config": config}))
    if not samples:
        return
    ours = {"output_tokens": 1, "mode": mode, "checkpoint": "base" if mode == "base" else "tuned", "style": "free"}
    rows = []
    for position, (response, target) in enumerate(zip(resps, targets, strict=True)):
        gate = {"gate": 0.5, "gamma": 0.5, "opened": opened[position], "entries": []} if opened else {}
        counts = [{**ours, **gate, **decision}]
        rows.append({"doc_id": position, "target": target, "filtered_resps": response, "token_counts": counts})
    lines = [json.dumps(row) for row in reversed(rows)]  # processes finish in any order
    (folder / f"{date}_samples_pope.jsonl").write_text("\n".join(lines) + "\n")


def rows_of(folder: Path) -> dict[str, list[str]]:
    """Return the cells of the table's lines by metric."""
    lines = [line for line in table(read_runs(folder)).splitlines() if line.startswith("pope")]
    cells = [[cell for cell in line.split("  ") if cell] for line in lines]
    return {name.strip(): [cell.strip() for cell in rest] for _, name, *rest in cells}


def test_runs_stand_side_by_side_with_their_difference_and_the_gates_mistakes(tmp_path: Path) -> None:
    write_run(tmp_path / "a", "pipeline", (True, False), accuracy=0.4)
    write_run(tmp_path / "b", "base", accuracy=0.6)
    write_run(tmp_path / "c", "gate", (True, False), accuracy=0.3, resps=("", "no"))
    write_run(tmp_path / "d", "no_retrieval", (True, False))
    assert rows_of(tmp_path) == {
        "accuracy": ["0.6 ±0.01", "0.5 ±0.01 (-0.1)", "0.3 ±0.01 (-0.3)", "0.4 ±0.01 (-0.2)"],
        "gate opens": ["–", *["50.0 [9.5, 90.5]"] * 3],
        "unanswered": ["0 of 2", "0 of 2", "1 of 2", "0 of 2"],
    }


def test_the_newest_of_repeated_runs_counts(tmp_path: Path) -> None:
    write_run(tmp_path / "a", "base", accuracy=0.6, date="20260102_000000")
    write_run(tmp_path / "b", "base", accuracy=0.1, date="20260101_000000")
    assert rows_of(tmp_path)["accuracy"] == ["0.6 ±0.01"]


def test_a_run_without_samples_stands_by_its_arguments(tmp_path: Path) -> None:
    write_run(tmp_path, "gate", accuracy=0.25, samples=False)
    assert rows_of(tmp_path) == {"accuracy": ["0.25 ±0.01"]}
    assert "free gate" in table(read_runs(tmp_path))


def test_another_model_of_lmms_evals_stands_under_its_name(tmp_path: Path) -> None:
    write_run(tmp_path / "a", "base")
    config = {"model": "llava_hf", "model_args": "pretrained=x"}
    record = {"results": {"pope": {"accuracy,none": 0.7}}, "config": config}
    (tmp_path / "20260101_000001_results.json").write_text(json.dumps(record))
    head = next(line for line in table(read_runs(tmp_path)).splitlines() if line.startswith("benchmark"))
    assert head.split() == ["benchmark", "before", "llava_hf"]
    assert rows_of(tmp_path)["accuracy"] == ["0.5 ±0.01", "0.7 (+0.2)"]


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"targets": ("yes", "no")}, "documents differ"),
        ({"style": "short"}, "style differ"),
        ({"checkpoint": "other"}, "checkpoint differ"),
        ({"gamma": 0.1}, "gamma differ"),
    ],
)
def test_runs_that_differ_in_more_than_the_mode_are_refused(tmp_path, other: dict[str, Any], message: str) -> None:
    write_run(tmp_path / "a", "gate", (True, False))
    write_run(tmp_path / "b", "pipeline", (True, False), **other)
    with pytest.raises(UserError, match=message):
        read_runs(tmp_path)


def test_a_mode_of_two_checkpoints_is_refused(tmp_path: Path) -> None:
    write_run(tmp_path / "a", "gate", (True, False))
    write_run(tmp_path / "b", "gate", (True, False), checkpoint="other", date="20260103_000000")
    with pytest.raises(UserError, match="of different models or settings"):
        read_runs(tmp_path)


def test_a_folder_without_results_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="give the --output_path of lmms-eval"):
        read_runs(tmp_path)


@pytest.mark.parametrize("count", [0, 1, 120, 399, 400], ids=str)
def test_a_shares_bounds_are_where_a_test_of_it_would_just_reject(count: int) -> None:
    total = 400
    for bound in share_interval(count, total):
        if 0 < bound < 1:
            distance = abs(count / total - bound) / np.sqrt(bound * (1 - bound) / total)
            assert distance == pytest.approx(1.959963984540054)

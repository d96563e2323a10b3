"""What a run leaves for those who watch it: `log.jsonl`, TensorBoard, wandb and trackio, read back; and no network."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from reflectune.data_builders.reflection_data import read_examples, write_examples
from reflectune.train.config import SftConfig
from reflectune.train.fine_tune import fine_tune
from reflectune.train.logs import LOG_FILE

CLOCK = ("tokens_per_second", "train_runtime", "train_samples_per_second", "train_steps_per_second")


def rows(folder: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(folder, LOG_FILE).read_text().splitlines()]


def without_clock(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name not in CLOCK} for row in found]


def test_the_log_has_each_row_once_in_a_resumed_run_too(
    config: Callable[..., SftConfig],
    data_folder: Path,
    interrupted: Callable[..., None],
    history: Callable[..., list[dict[str, Any]]],
) -> None:
    write_examples(data_folder / "val.parquet", read_examples(data_folder / "train.parquet")[:7])
    changes: dict[str, Any] = {"eval_data": str(data_folder), "eval_steps": 4}
    straight, resumed = config("straight", **changes), config("resumed", **changes)
    fine_tune(straight)
    interrupted(resumed, 5)
    assert [row["step"] for row in rows(resumed.output_dir)] == [1, 2, 3, 4, 4, 5][: len(rows(resumed.output_dir))]
    fine_tune(resumed)

    found = rows(resumed.output_dir)
    assert found == history(resumed.output_dir)
    assert [row["step"] for row in found if "loss" in row] == list(range(1, 9))
    assert [row["step"] for row in found if "eval_loss" in row] == [4, 8]
    assert all({"learning_rate", "tokens_per_second", "grad_norm"} <= set(row) for row in found if "loss" in row)
    trained = [row for row in without_clock(rows(straight.output_dir)) if "train_loss" not in row]
    assert trained == [row for row in without_clock(found) if "train_loss" not in row]


def test_the_progress_line_shows_eta_and_tokens_per_second(
    config: Callable[..., SftConfig], interrupted: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    interrupted(config(), 5)
    capsys.readouterr()
    fine_tune(config())

    lines = capsys.readouterr().err.replace("\r", "\n").splitlines()
    progress = [line for line in lines if "tokens/s" in line]
    assert "3/8" in next(line for line in lines if "/8 [" in line)  # and not 0/8: the ETA is of what is left
    assert any("8/8" in line and "<00:0" in line for line in progress)  # elapsed<remaining

"""`dtype: auto` is decided once for a run, recorded, and kept when it goes on."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from reflectune.core.compute_trial import ComputeChoice
from reflectune.train.settings.sft import SftConfig
from reflectune.train.runs.fine_tune import fine_tune
from reflectune.train.rewards.gate_config import GateConfig
from reflectune.train.runs.checkpoints import RECORD
from reflectune.train.runs import compute


def trial(monkeypatch: pytest.MonkeyPatch, dtype: str) -> list[str]:
    """Has the trial find a precision, and returns the list of trials that were made."""
    made: list[str] = []

    def found() -> ComputeChoice:
        made.append(dtype)
        return ComputeChoice(dtype, 1, "by a timed product")

    monkeypatch.setattr(compute, "try_cpu", found)
    return made


def record(run: SftConfig) -> dict[str, object]:
    return json.loads(Path(run.output_dir, RECORD).read_text())["settings"]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_run_takes_what_the_trial_finds_and_records_it(
    config: Callable[..., SftConfig],
    dtype: str,
    monkeypatch: pytest.MonkeyPatch,
    assert_equal_weights: Callable[..., None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    trial(monkeypatch, dtype)
    chosen, given = config("chosen", dtype="auto", max_steps=2), config("given", dtype=dtype, max_steps=2)
    fine_tune(chosen)
    fine_tune(given)

    assert_equal_weights(chosen.output_dir, given.output_dir)
    assert f"compute: {dtype} with 1 thread, by a timed product" in capsys.readouterr().out
    assert (record(chosen)["dtype"], record(chosen)["compute_threads"]) == (dtype, 1)
    assert "compute_threads" not in record(given)


def test_a_run_that_goes_on_keeps_its_precision_whatever_a_trial_would_find(
    config: Callable[..., SftConfig],
    monkeypatch: pytest.MonkeyPatch,
    interrupted: Callable[..., None],
    assert_equal_weights: Callable[..., None],
) -> None:
    trial(monkeypatch, "bfloat16")
    fine_tune(config("straight", dtype="auto"))
    interrupted(config("resumed", dtype="auto"), 5)

    tried = trial(monkeypatch, "float32")
    fine_tune(config("resumed", dtype="auto"))

    assert tried == []
    assert_equal_weights(config("straight").output_dir, config("resumed").output_dir)


def test_the_users_threads_win_and_the_record_stays(
    config: Callable[..., SftConfig], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(compute, "try_cpu", lambda: ComputeChoice("float32", 2, "by a timed product"))

    fine_tune(run := config(dtype="auto", max_steps=2))

    assert torch.get_num_threads() == 1
    assert (
        "compute: float32 with 2 threads, by a timed product; $OMP_NUM_THREADS makes it 1 now"
        in capsys.readouterr().out
    )
    assert record(run)["compute_threads"] == 2


def test_no_trial_is_made_unasked_and_none_for_gates(
    config: Callable[..., SftConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = trial(monkeypatch, "bfloat16")
    fine_tune(config(max_steps=2))

    assert tried == []
    assert any("`dtype: auto` is for train/sft.py" in issue for issue in GateConfig(dtype="auto").problems())

"""Logs of a run, read back: `log.jsonl`, TensorBoard and wandb, without a network."""

import json
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from reflectune.core import progress
from reflectune.core.config import parse_config
from reflectune.core.errors import UserError
from reflectune.formats.reflection_data import read_examples, write_examples
from reflectune.models.loading import load
from reflectune.models.schemes.examples import ReflectionExample
from reflectune.train.runs.logs import LOG_FILE
from reflectune.train.runs.supervised import encoded_examples, fine_tune
from reflectune.train.settings.sft import SftConfig

CLOCK = ("tokens_per_second", "train_runtime", "train_samples_per_second", "train_steps_per_second")


def rows(folder: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(folder, LOG_FILE).read_text().splitlines()]


def without_clock(logged_rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name not in CLOCK} for row in logged_rows]


def test_the_log_has_each_row_and_all_tokens_once_in_a_resumed_run_too(
    config, data_folder, interrupted, history
) -> None:
    """Four steps of four examples: all twelve once, and four of them twice."""
    examples = read_examples(data_folder / "train.parquet", ReflectionExample)[:12]
    write_examples(data_folder / "train.parquet", examples)
    write_examples(data_folder / "val.parquet", examples[:7])
    changes: dict[str, Any] = {"eval_data": str(data_folder), "eval_steps": 2, "max_steps": 4, "save_steps": 2}
    straight, resumed = config("straight", **changes), config("resumed", **changes)
    fine_tune(straight)
    interrupted(resumed, 3)
    assert [row["step"] for row in rows(resumed.output_dir)] in ([1, 2, 2], [1, 2, 2, 3])
    fine_tune(resumed)

    log = rows(resumed.output_dir)
    assert log == history(resumed.output_dir)
    assert not Path(resumed.output_dir, "tracked_run").exists()  # no tracker, no identifier
    assert [row["step"] for row in log if "loss" in row] == [1, 2, 3, 4]
    assert [row["step"] for row in log if "eval_loss" in row] == [2, 4]
    assert all({"learning_rate", "tokens_per_second", "grad_norm"} <= set(row) for row in log if "loss" in row)
    trained = [row for row in without_clock(rows(straight.output_dir)) if "train_loss" not in row]
    assert trained == [row for row in without_clock(log) if "train_loss" not in row]
    assert [list(row) for row in rows(straight.output_dir)] == [list(row) for row in log]  # and in the same order

    states = [json.loads(Path(run.output_dir, "trainer_state.json").read_text()) for run in (straight, resumed)]
    assert states[0]["num_input_tokens_seen"] == states[1]["num_input_tokens_seen"]
    loaded = load(straight.model, scheme="mr2ag", device="cpu")
    encoded = encoded_examples(examples, (data_folder / "images",), loaded, straight)
    lengths = [sum(tree.length for tree in example.trees) for example in encoded]
    assert len(lengths) == 12
    once, most = sum(lengths), sum(sorted(lengths)[-4:])
    assert once < states[0]["num_input_tokens_seen"] <= once + most


def test_the_progress_line_shows_eta_and_tokens_per_second(config, interrupted, capsys, monkeypatch) -> None:
    run = config(max_steps=5, save_steps=2)
    interrupted(run, 3)
    printed = capsys.readouterr().err
    monkeypatch.setattr(progress, "SECONDS", 1e-6)
    fine_tune(run)

    assert "/5 [" not in printed  # a log has no line before 30 seconds
    lines = capsys.readouterr().err.splitlines()
    with_speed = [line for line in lines if "tokens/s" in line]
    assert "3/5" in next(line for line in lines if "/5 [" in line)  # and not 1/5: the ETA is of what is left
    assert any("5/5" in line and "<00:0" in line for line in with_speed)  # elapsed<remaining


def logged(folder: str) -> dict[int, dict[str, float]]:
    """By step, what trackers should have: the losses and learning rates."""
    names = ("loss", "learning_rate")
    return {row["step"]: {name: row[name] for name in names} for row in rows(folder) if "loss" in row}


@pytest.mark.slow
def test_tensorboards_events_are_read_back(config, interrupted) -> None:
    """Also those of a run that was resumed, as one run."""
    accumulator = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator", reason="needs reflectune[trackers]"
    )
    run = config(report_to=["tensorboard"])
    interrupted(run, 5)
    fine_tune(run)

    (folder,) = {path.parent for path in Path(run.output_dir).rglob("events.out.tfevents.*")}
    events = accumulator.EventAccumulator(str(folder))
    events.Reload()
    for name in ("loss", "learning_rate"):
        value_by_step = {event.step: event.value for event in events.Scalars(f"train/{name}")}
        assert value_by_step == pytest.approx({step: row[name] for step, row in logged(run.output_dir).items()})
    assert "train/tokens_per_second" in events.Tags()["scalars"]


@pytest.mark.slow
def test_offline_runs_of_wandb_are_one_run(config, interrupted, monkeypatch, tmp_path) -> None:
    """A run that was resumed is the same run there, by its identifier and name."""
    wandb = pytest.importorskip("wandb", reason="needs reflectune[trackers]")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    run = config(report_to=["wandb"], max_steps=4)
    interrupted(run, 3)
    wandb.finish()  # as the end of the process does
    fine_tune(run)
    wandb.teardown()  # waits for the process that writes the file

    identifier = Path(run.output_dir, "tracked_run").read_text()
    files = sorted(tmp_path.glob("wandb/offline-run-*/run-*.wandb"))
    assert len(files) == 2
    for file in files:
        assert file.stem == f"run-{identifier}"
        content = file.read_bytes()
        assert f"{Path(run.output_dir).name}-{identifier}".encode() in content
        assert b"train/loss" in content


def test_a_tracker_that_is_unknown_or_not_installed_is_a_problem(config, monkeypatch) -> None:
    run = config(report_to=["wandbb"])
    arguments = ["--train_data", str(run.train_data), "--output_dir", "out", "--report_to"]
    with pytest.raises(UserError, match="`report_to`: wandbb is not a tracker; choose of clearml"):
        parse_config(SftConfig, argv=[*arguments, "wandbb"])
    monkeypatch.setattr("reflectune.train.settings.saving.find_spec", lambda name: None)
    with pytest.raises(UserError, match="`report_to`: wandb is not installed: `pip install wandb`"):
        parse_config(SftConfig, argv=[*arguments, "wandb"])


@pytest.mark.slow
def test_nothing_is_sent_unless_it_is_asked_for(config, typed, monkeypatch, tmp_path) -> None:
    """A whole run, with nothing in its environment that forbids telemetry, and with eyes on every connection."""
    watcher = """
        import os, socket
        def watched(original):
            def call(first, *rest, **named):
                address = rest[0] if isinstance(first, socket.socket) else first
                if not (isinstance(first, socket.socket) and first.family == socket.AF_UNIX):
                    with open(os.environ["SEEN"], "a") as file:
                        file.write(f"{address}\\n")
                return original(first, *rest, **named)
            return call
        socket.socket.connect = watched(socket.socket.connect)
        socket.socket.connect_ex = watched(socket.socket.connect_ex)
        socket.getaddrinfo = watched(socket.getaddrinfo)
        open(os.environ["SEEN"], "a").write("watching\\n")
    """
    (tmp_path / "sitecustomize.py").write_text(textwrap.dedent(watcher))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    monkeypatch.setenv("SEEN", str(tmp_path / "seen"))
    for name in ("HF_HUB_OFFLINE", "HF_HUB_DISABLE_TELEMETRY", "DO_NOT_TRACK", "TRANSFORMERS_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    command = [sys.executable, "-m", "reflectune", "sft", *typed(config(max_steps=2))]
    subprocess.run(command, check=True, capture_output=True, cwd=tmp_path)

    assert set((tmp_path / "seen").read_text().splitlines()) == {"watching"}

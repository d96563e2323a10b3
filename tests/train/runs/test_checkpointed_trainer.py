"""Steps that are not finite, signals, and files on their way to the disk."""

import os
import shutil
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from reflectune.core.errors import UserError
from reflectune.train.runs.supervised import fine_tune
from reflectune.train.runs.trainer import ReflectionTrainer
from reflectune.train.weights.checkpoints import RECORD


def whole(output_dir: str) -> list[str]:
    return [path.parent.name for path in Path(output_dir).glob(f"**/{RECORD}")]


@pytest.mark.parametrize("spoilt", ["gradient", "weights", "loss"])
def test_a_step_that_is_not_finite_is_not_saved(spoilt: str, config, monkeypatch: pytest.MonkeyPatch) -> None:
    run, original = config(save_steps=1), ReflectionTrainer.training_step

    def training_step(self: Any, model: Any, *rest: Any) -> torch.Tensor:
        loss = original(self, model, *rest)
        if self.state.global_step == 1 and spoilt == "loss":
            self.step_losses[-1] = (loss * torch.inf, ("k1",))
        elif self.state.global_step == 1:
            parameter = next(p for p in model.parameters() if p.grad is not None)
            (parameter.grad if spoilt == "gradient" else parameter.data).view(-1)[0] = torch.nan
        return loss

    monkeypatch.setattr(ReflectionTrainer, "training_step", training_step)
    found = {
        "gradient": "the gradient's norm became nan at step 2, on the examples [kv]",
        "weights": "some weights are not finite at step 2",
        "loss": "the loss became inf at step 2, on the examples k1;",
    }
    with pytest.raises(UserError, match=found[spoilt]):
        fine_tune(run)
    assert whole(run.output_dir) == ["checkpoint-1"]


@pytest.mark.parametrize(
    ("number", "workers"), [(signal.SIGTERM, 0), pytest.param(signal.SIGINT, 1, marks=pytest.mark.slow)]
)
def test_a_signal_saves_a_checkpoint_and_stops(
    number: signal.Signals, workers: int, config, straight, assert_equal_weights, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A scheduler or a terminal sends it to all processes of a job, often twice."""
    run, original = config("resumed", dataloader_workers=workers), ReflectionTrainer.training_step
    others = psutil.Process().children()  # such as the process that programs are forked from

    def training_step(self: Any, *rest: Any) -> torch.Tensor:
        if self.state.global_step == 3:
            job = [*(it for it in psutil.Process().children() if it not in others), psutil.Process()]
            assert len(job) == 1 + workers
            for process in job * 2:
                process.send_signal(number)
        return original(self, *rest)

    before = signal.signal(number, signal.default_int_handler)  # not to end the tests
    with monkeypatch.context() as patch:
        patch.setattr(ReflectionTrainer, "training_step", training_step)
        with pytest.raises(SystemExit, match=str(128 + number)):
            fine_tune(run)
    assert signal.signal(number, before) is signal.default_int_handler
    assert whole(run.output_dir) == ["checkpoint-4"]
    fine_tune(run)

    assert_equal_weights(straight().output_dir, run.output_dir)


def test_a_second_ctrl_c_stops_at_once(config, monkeypatch: pytest.MonkeyPatch) -> None:
    def training_step(self: Any, *rest: Any) -> torch.Tensor:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        raise AssertionError("it goes on")

    run = config("stopped")
    monkeypatch.setattr("reflectune.train.runs.checkpointed_trainer.SAME_SIGNAL", -1.0)
    monkeypatch.setattr(ReflectionTrainer, "training_step", training_step)
    with pytest.raises(KeyboardInterrupt):
        fine_tune(run)
    assert not whole(run.output_dir)


def test_a_checkpoint_is_on_the_disk_before_the_one_before_is_deleted(config, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: set[str] = set()
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.add(os.readlink(f"/proc/self/fd/{descriptor}")))
    deleted, delete = [], shutil.rmtree

    def rmtree(folder: Path, *rest: Any, **named: Any) -> None:
        if folder.name == "checkpoint-1":
            deleted.append(folder)
            files = {str(path) for path in folder.with_name("checkpoint-2").rglob("*")}
            assert files | {str(folder.with_name("checkpoint-2"))} <= synced
            assert any(path.endswith("optimizer.pt") for path in files)
        delete(folder, *rest, **named)

    monkeypatch.setattr(shutil, "rmtree", rmtree)
    fine_tune(config(max_steps=2, save_steps=1))

    assert deleted


def test_a_disk_that_fills_up_while_a_checkpoint_is_written_leaves_the_one_before(config, monkeypatch) -> None:
    """Another process takes the space that was free when the run looked."""
    run = config("full", save_steps=1)
    save, written = torch.save, []

    def fills_up(content: Any, path: Any, *rest: Any, **named: Any) -> None:
        if "checkpoint-2" in str(path):
            written.append(path)
            Path(path).write_bytes(b"a part")
            raise OSError(28, "No space left on device", str(path))
        save(content, path, *rest, **named)

    monkeypatch.setattr(torch, "save", fills_up)
    with pytest.raises(OSError, match="No space left"):
        fine_tune(run)
    assert written
    assert whole(run.output_dir) == ["checkpoint-1"]

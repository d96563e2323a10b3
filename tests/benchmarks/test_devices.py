"""Benchmarks that take `--device` give it to each command as that command takes it."""

from __future__ import annotations

import argparse
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType

import pytest

from reflectune.train.settings.sft import SftConfig

ROOT = Path(__file__).parents[2]


def trained_on() -> tuple[str, ...]:
    """What `train.sft` takes as its device."""
    return typing.get_args(typing.get_type_hints(SftConfig)["device"])


def device_of(command: list[str]) -> str:
    """What a command is told, "" if nothing."""
    return command[command.index("--device") + 1] if "--device" in command else ""


def test_a_quick_start_on_a_gpu_computes_there(script: Callable[[str], ModuleType]) -> None:
    stages: Mapping[str, list[str]] = script("quickstart").stages(Path("run"), "llava", "full", 0, device="cuda")

    assert {name for name, command in stages.items() if not device_of(command)} == {"world"}
    for name, command in stages.items():
        assert name == "world" or device_of(command) == "cuda" in trained_on(), name
        if "accelerate.commands.launch" in command:
            assert command[command.index("--config_file") + 1].endswith("configs/accelerate/gpu.yaml"), name


def test_a_quick_start_on_a_cpu_leaves_it_to_the_recipes(script: Callable[[str], ModuleType]) -> None:
    stages: Mapping[str, list[str]] = script("quickstart").stages(Path("run"), "llava", "full", 0)

    assert not any(device_of(command) for command in stages.values())


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_rehearsal_tells_training_what_it_takes(script: Callable[[str], ModuleType], device: str) -> None:
    rehearsal = script("rehearsal")
    options = argparse.Namespace(device=device, dtype="bfloat16", limit=2, built=2, processes=1)
    settings = rehearsal.changes(Path("models"), rehearsal.Rows(), options)["settings"]

    assert settings["train.sft"]["device"] in trained_on()
    assert settings["inference.evaluate"]["device"] == device
    assert "device" not in settings["data_builders.convert"]

"""The quick start: its commands, its device, and the table of its scores."""

import importlib.util
import typing
from pathlib import Path

from reflectune.examples.miniature.quickstart import stages, summary
from reflectune.examples.scores import equal_depth
from reflectune.train.settings.sft import SftConfig

DEVICES = typing.get_args(typing.get_type_hints(SftConfig)["device"])
"""Values of `train.sft`'s device."""


def device_of(command: list[str]) -> str:
    """Return a command's `--device`, "" if it has none."""
    return command[command.index("--device") + 1] if "--device" in command else ""


def test_a_stage_is_a_module_of_the_package_with_a_recipe_of_the_package() -> None:
    for processes in (1, 2):
        for command in stages(Path("run"), "llava", "full", 0, processes).values():
            modules = [word for word in command if word.partition(".")[0] == "reflectune"]
            assert len(modules) == 1
            assert importlib.util.find_spec(modules[0]), modules
            assert "--config" not in command or Path(command[command.index("--config") + 1]).is_file()
            assert not [word for word in command if word.endswith(".py")]


def test_a_quick_start_on_a_gpu_computes_there() -> None:
    commands = stages(Path("run"), "llava", "full", 0, device="cuda")

    assert {name for name, command in commands.items() if not device_of(command)} == {"world"}
    for name, command in commands.items():
        assert name == "world" or device_of(command) == "cuda" in DEVICES, name
        if "accelerate.commands.launch" in command:
            assert command[command.index("--config_file") + 1].endswith("configs/accelerate/gpu.yaml"), name


def test_a_quick_start_on_a_cpu_leaves_the_device_to_the_recipes() -> None:
    assert not any(device_of(command) for command in stages(Path("run"), "llava", "full", 0).values())


def test_the_tables_show_scores_with_intervals_and_a_dash_where_one_is_missing() -> None:
    score = {"value": 0.5, "low": 0.25, "high": 0.75, "n": 8}
    metrics = {
        "pipelines": {"mr2ag": {"overall": score}, "closed_book": {"overall": None}},
        "gate": {"accuracy": score},
        "comparisons": {"mr2ag - best_baseline": {**score, "value": 0.1, "low": -0.1, "high": 0.3}},
        "best_baseline": "closed_book",
    }

    lines = summary(metrics)
    assert [" ".join(line.split()) for line in lines[:2]] == ["mr2ag 50.0 (25.0 to 75.0, n = 8)", "closed_book –"]
    assert "gate accuracy" in lines[2]
    depth = equal_depth(metrics)
    assert depth[-1] == "lead over the best of them (closed_book): +10.0 (-10.0 to +30.0)"
    assert any(line.startswith("mR²AG, 5 entries") and line.endswith("50.0") for line in depth)

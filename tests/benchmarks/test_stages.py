"""Stages of benchmarks: commands that exist, with recipes that exist and keys that their configs know."""

import importlib
import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from reflectune import cli
from reflectune.core.command import Command

Script = Callable[[str], ModuleType]

MODULES = {name.partition(".")[2]: f"reflectune.{name}" for group in cli.GROUPS.values() for name in group}


@pytest.fixture
def commands(script: Script) -> dict[str, list[str]]:
    """Return the commands of every benchmark that runs stages."""
    run = Path("run")
    return {
        **{f"mmkb {name}": words for name, words in script("mmkb").stages(run, "llava", 0).items()},
        **{f"grpo {name}": words for name, words in script("grpo").stages(run, 0, 40, 0.3, ["refined"]).items()},
        **{f"two_hop {name}": words for name, words in script("two_hop").stages(run, run, [1], [2]).items()},
        **{f"agent {name}": words for name, words in script("two_hop").agent_stages(run, run, [1, 2], [3]).items()},
        **{f"gates {name}": words for name, words in script("gates").stages(run, [1, 2]).items()},
    }


def program_of(words: list[str]) -> tuple[str, ...]:
    """Return the words behind `-m` that name a command: of the program `reflectune`, or a module of its own."""
    first = next(i for i, word in enumerate(words) if word.partition(".")[0] == "reflectune")
    return tuple(words[first : first + (2 if words[first] == "reflectune" else 1)])


def keys_of(words: list[str]) -> set[str]:
    """Return the keys that a command is given."""
    program = program_of(words)
    return {word[2:] for word in words[words.index(program[-1]) :] if word.startswith("--")}


def command_of(words: list[str]) -> Command[Any]:
    program = program_of(words)
    module = MODULES[program[1]] if len(program) == 2 else program[0]
    return getattr(importlib.import_module(module), module.rpartition(".")[2])


def test_each_stage_is_a_command_with_a_recipe_of_the_package(commands: dict[str, list[str]]) -> None:
    for stage, words in commands.items():
        program = program_of(words)
        assert program[-1] in MODULES if len(program) == 2 else importlib.util.find_spec(program[0]), stage
        if "--config" in words:
            assert Path(words[words.index("--config") + 1]).is_file(), stage


def test_each_key_of_a_stage_is_a_key_of_its_command(commands: dict[str, list[str]]) -> None:
    for stage, words in commands.items():
        assert keys_of(words) <= {"config", *command_of(words).kind.model_fields}, stage

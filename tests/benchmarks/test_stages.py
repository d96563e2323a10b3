"""Stages of benchmarks: commands that exist, with recipes that exist and keys that their configs know."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

Script = Callable[[str], ModuleType]


@pytest.fixture
def commands(script: Script) -> dict[str, list[str]]:
    """Return the commands of every benchmark that runs stages."""
    run = Path("run")
    scale = script("scale").steps(run, 1000, 2)
    return {
        **{f"mmkb {name}": words for name, words in script("mmkb").stages(run, "llava", 0).items()},
        **{f"grpo {name}": words for name, words in script("grpo").stages(run, 0, 40, 0.3, ["refined"]).items()},
        **{f"two_hop {name}": words for name, words in script("two_hop").stages(run, run, [1], [2]).items()},
        **{f"scale {name}": [sys.executable, *words] for name, (_, words, _) in scale.items()},
    }


def module_of(words: list[str]) -> str:
    """Return the module of the package that a command runs."""
    return next(word for word in words if word.startswith("reflectune."))


def keys_of(words: list[str]) -> Iterator[str]:
    """Yield the keys behind the module."""
    return (word[2:] for word in words[words.index(module_of(words)) :] if word.startswith("--"))


def test_each_stage_is_a_module_with_a_recipe_of_the_package(commands: dict[str, list[str]]) -> None:
    for name, words in commands.items():
        assert importlib.util.find_spec(module_of(words)), name
        if "--config" in words and not name.startswith("scale"):
            assert Path(words[words.index("--config") + 1]).is_file(), name


@pytest.mark.slow
def test_each_key_of_a_stage_is_a_key_of_its_command(commands: dict[str, list[str]]) -> None:
    for module in sorted({module_of(words) for words in commands.values()}):
        shown = subprocess.run([sys.executable, "-m", module, "--help"], capture_output=True, text=True, check=True)
        given = {key for words in commands.values() if module_of(words) == module for key in keys_of(words)}
        assert {key for key in given if f"--{key}" not in shown.stdout} <= {"config"}, module

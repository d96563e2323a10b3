"""The soaks' commands have the keys that they are given."""

import importlib
from pathlib import Path

import pytest

from tests.soak.chain import JOBS

ARGPARSE = ("examples.pocket.pack", "examples.pocket.fetch")
"""Commands without a config."""


@pytest.mark.parametrize("name", [name for name, job in JOBS.items() if job.module not in ARGPARSE])
def test_each_flag_of_a_job_is_a_key_of_its_command(name: str) -> None:
    module = importlib.import_module(f"reflectune.{JOBS[name].module}")
    command = getattr(module, module.__name__.rpartition(".")[2])
    flags = {word.removeprefix("--") for word in JOBS[name].arguments(Path("out")) if word.startswith("--")}
    assert flags <= {"config", *command.kind.model_fields}

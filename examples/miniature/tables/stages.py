"""What a tables command works through: stages to build with, models to answer with, and the tables to fill.

A stage is the command that a user would type; a finished one is not run again.
"""

from __future__ import annotations

import importlib.resources
import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reflectune.core.durable import read_json, write_json
from reflectune.core.errors import UserError
from reflectune.core.launching import alone
from reflectune.examples.miniature.tables.claims import Table
from reflectune.examples.staging import program
from reflectune.inference.sweeps.points import Point

FINISHED = "finished.json"


@dataclass(frozen=True)
class Stage:
    """One command, and the folder that it fills.

    Attributes:
        name: What it is called in the log.
        module: The entry script's module, without `reflectune.`.
        config: Its YAML, relative to `reflectune.configs`.
        settings: What differs from the YAML; None leaves a key out, and a function gives a value that depends on an
            earlier stage.
        folder: The folder that it fills; a mark is left beside it when it is finished.
        estimate: Minutes that it is expected to take on two idle CPU cores.
    """

    name: str
    module: str
    config: str
    settings: Mapping[str, Any]
    folder: Path
    estimate: float

    def command(self) -> list[str]:
        """The command line."""
        path = str(importlib.resources.files("reflectune.configs").joinpath(self.config))
        flags = [part for name, value in self.settings.items() for part in _flag(name, value)]
        return [*program(self.module), "--config", path, *flags]


@dataclass(frozen=True)
class Spent:
    """Minutes of a stage, expected and real; `reused`: an earlier run spent them."""

    name: str
    estimated: float
    real: float
    reused: bool = False


def run_stages(stages: Sequence[Stage]) -> list[Spent]:
    """Run what isn't finished, in order, and say how long each took.

    Raises:
        UserError: A stage failed, or its folder was filled by another command.
    """
    return [run_stage(stage) for stage in stages]


def run_stage(stage: Stage) -> Spent:
    """Run a stage if it isn't finished."""
    mark = stage.folder.parent / f"{stage.folder.name}.{FINISHED}"
    command = stage.command()
    if mark.exists():
        earlier_run = read_json(mark, "the mark of a finished stage")
        if earlier_run["command"] != command:
            changed = sorted(set(map(str, earlier_run["command"])) ^ set(command))
            raise UserError(
                f"{stage.folder} was filled by another command (it differs in {', '.join(changed)}); choose another "
                f"output folder, or delete {stage.folder} and {mark}"
            )
        return Spent(stage.name, stage.estimate, float(earlier_run["minutes"]), reused=True)
    print(f"\n== {stage.name}: about {stage.estimate:g} min\n$ {' '.join(command)}", flush=True)
    start = time.monotonic()
    environment = {**alone(os.environ), "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    status = subprocess.run(command, env=environment, check=False).returncode
    if status:
        raise UserError(f"stage {stage.name} ended with status {status}; its own message is above: {' '.join(command)}")
    spent = Spent(stage.name, stage.estimate, round((time.monotonic() - start) / 60, 2))
    write_json(mark, {"command": command, "minutes": spent.real})
    print(f"== {stage.name}: {spent.real:.1f} min", flush=True)
    return spent


def describe(stages: Sequence[Stage]) -> list[str]:
    """What would be run, one line a stage."""
    return [f"  {stage.name}: about {stage.estimate:g} min into {stage.folder}" for stage in stages]


def _flag(name: str, value: Any) -> list[str]:
    resolved = value() if callable(value) else value
    if resolved is None:
        return []
    return [f"--{name}", str(resolved).lower() if isinstance(resolved, bool) else str(resolved)]


@dataclass(frozen=True)
class Answering:
    """One model that questions are taken through grid points with.

    Attributes:
        model: The name that tables know it by, the same for all seeds.
        seed: Its seed.
        world: The data set.
        index: The index over its knowledge base.
        checkpoint: The tuned model.
        plain: The model that was tuned without reflection; None if no point needs one.
        points: The grid points.
        estimate: Minutes expected.
    """

    model: str
    seed: int
    world: Path
    index: Path
    checkpoint: Path
    points: Sequence[Point]
    estimate: float
    plain: Path | None = None


@dataclass(frozen=True)
class Plan:
    """Everything that a tables command does.

    Attributes:
        title: Of the tables.
        stages: What has to be built, in order.
        answering: What has to be answered, after that.
        tables: What is read off the answers.
    """

    title: str
    stages: Sequence[Stage]
    answering: Sequence[Answering]
    tables: Sequence[Table]

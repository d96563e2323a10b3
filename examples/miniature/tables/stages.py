"""Work of a tables command: stages that build, models that answer, and the tables to fill."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reflectune.examples.miniature.tables.claims import PaperTable
from reflectune.examples.staging import flags, module, program, run_stages
from reflectune.inference.sweeps.points import Point


@dataclass(frozen=True)
class BuildStage:
    """A command, and the folder that it fills.

    Attributes:
        name: Name in the log.
        module: Module of the command, without `reflectune.`.
        recipe: YAML file in `configs/examples/miniature`; "" for none.
        settings: Keys that differ from the YAML. None leaves a key out; a function returns a value that depends on an
            earlier stage.
        folder: The folder that it fills.
    """

    name: str
    module: str
    recipe: str
    settings: Mapping[str, Any]
    folder: Path

    def command(self) -> list[str]:
        """Return the command line."""
        recipe = f"examples/miniature/{self.recipe}"
        return [*(module(self.module, recipe) if self.recipe else program(self.module)), *flags(self.settings)]


def build(stages: Sequence[BuildStage], output: Path) -> None:
    """Run the unfinished stages, in order. Exit if one of them fails, or was run by a different command before."""
    output.mkdir(parents=True, exist_ok=True)
    for stage in stages:
        run_stages(output, {stage.name: stage.command()})


@dataclass(frozen=True)
class Answering:
    """A model that answers the questions at grid points.

    Attributes:
        model: Name in the tables, the same for all seeds.
        seed: Its seed.
        world: The data set.
        index: The index over its knowledge base.
        checkpoint: The tuned model.
        points: The grid points.
        plain: The model that was tuned without reflection; None if no point needs one.
    """

    model: str
    seed: int
    world: Path
    index: Path
    checkpoint: Path
    points: Sequence[Point]
    plain: Path | None = None


@dataclass(frozen=True)
class TablesPlan:
    """All work of a tables command.

    Attributes:
        title: Title of the page.
        stages: Stages that build, in order.
        answering: Models that answer, after that.
        tables: Tables that are filled from the answers.
    """

    title: str
    stages: Sequence[BuildStage]
    answering: Sequence[Answering]
    tables: Sequence[PaperTable]

"""What a tables command works through: the models to answer with, and the tables to fill."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from reflectune.inference.grid.claims import Table
from reflectune.inference.grid.points import Point
from reflectune.inference.grid.stages import Stage


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

"""The best checkpoint by a validation metric: kept apart while training goes on, and in the end the run's result."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from transformers.trainer import TRAINER_STATE_NAME

from reflectune.core.durable import read_json
from reflectune.train.saving.checkpoints import RECORD, mark_whole

BEST = "best"
"""The folder in `output_dir` that holds the best weights so far."""


def is_patience_exhausted(
    history: Sequence[Mapping[str, Any]], metric: str, best_step: int, patience: int | None
) -> bool:
    """Whether so many validations have passed since the best one.

    It is a function of what a checkpoint holds, so that a resumed run stops where the straight one does.

    Args:
        history: Rows of the log, each with its `step`; those of a validation hold `eval_<metric>`.
        metric: By which the best is chosen.
        best_step: The step of the best validation.
        patience: How many validations may pass without a better one; None for any number.
    """
    later = [row for row in history if f"eval_{metric}" in row and row["step"] > best_step]
    return patience is not None and len(later) >= patience


def has_stopped_early(checkpoint: Path, metric: str, patience: int | None) -> bool:
    """Whether the run that wrote a checkpoint was out of patience there: nothing is left to train."""
    if patience is None:
        return False
    state = read_json(checkpoint / TRAINER_STATE_NAME, "the trainer's state")
    return is_patience_exhausted(state["log_history"], metric, state["best_global_step"] or 0, patience)


def put_in_place(partial: Path, output_dir: Path, settings: Mapping[str, Any], step: int) -> None:
    """Make the checkpoint in `partial` the best one; a run that is cut off here makes it anew when it is resumed."""
    mark_whole(partial, settings, step)
    best = output_dir / BEST
    if best.exists():
        (best / RECORD).unlink(missing_ok=True)
        shutil.rmtree(best)
    os.replace(partial, best)


def end_with_best(output_dir: Path) -> None:
    """Put the best checkpoint's files into `output_dir`, as links to them where the disk can."""
    best = output_dir / BEST
    for path in best.iterdir():
        if path.name != RECORD:
            (output_dir / path.name).unlink(missing_ok=True)
            _link(path, output_dir / path.name)


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)

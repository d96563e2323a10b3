"""Trackers show a training as one run, however often it goes on: the stock trainer begins another one each time."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Final

from transformers import Trainer
from transformers.integrations import TensorBoardCallback

from reflectune.core.durable import write_atomically

TRACKED_RUN: Final = "tracked_run"
"""The file in `output_dir` with the identifier by which trackers know the run."""
EVENTS: Final = "runs"
"""The folder in `output_dir` that TensorBoard reads."""


def track_as_one_run(trainer: Trainer) -> None:
    """Have the trackers go on with the run that they have of a training, if it was tracked before.

    That holds for wandb, trackio and TensorBoard; others take the name alone. What $WANDB_RUN_ID and
    $TENSORBOARD_LOGGING_DIR say wins. Steps after the checkpoint that a run goes on from are sent again, the same ones.
    """
    args = trainer.args
    if args.process_index or not args.report_to:
        return
    folder = Path(str(args.output_dir))
    identifier = _identifier(folder / TRACKED_RUN)
    args.run_name = f"{folder.resolve().name}-{identifier}"  # trackio goes on with the run of a name
    for callback in trainer.callback_handler.callbacks:
        if isinstance(callback, TensorBoardCallback) and callback.logging_dir is None:
            callback.logging_dir = str(folder / EVENTS)
    if "wandb" in args.report_to and "WANDB_RUN_ID" not in os.environ:
        _begin_in_wandb(identifier, args.run_name)


def _identifier(path: Path) -> str:
    """The run's, made up when it begins. A run whose folder is deleted is another one."""
    if not path.is_file():
        write_atomically(path, secrets.token_hex(4))
    return path.read_text(encoding="utf-8").strip()


def _begin_in_wandb(identifier: str, name: str) -> None:
    """Begin or resume a run, which the stock trainer's callback then takes; a caller's own is left to it."""
    import wandb  # an extra

    if wandb.run is None:
        project = os.getenv("WANDB_PROJECT", "huggingface")  # as the callback would
        wandb.init(project=project, id=identifier, name=name, resume="allow")

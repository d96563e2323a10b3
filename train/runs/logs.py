"""Output of a training run: a progress line with rate and ETA, logged rows in `log.jsonl`, and trackers."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from transformers import ProgressCallback, Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.integrations import TensorBoardCallback

from reflectune.core.durable import write_atomically
from reflectune.core.progress import progress_bar

LOG_FILE: Final = "log.jsonl"
"""The file in `output_dir` with one logged row a line: step, loss, learning rate, tokens/s, validation metrics."""
TRACKED_RUN: Final = "tracked_run"
"""The file in `output_dir` with the id of the run in trackers."""
EVENTS: Final = "runs"
"""The folder in `output_dir` that TensorBoard reads."""


class ProgressWithSpeed(ProgressCallback):
    """The stock progress line with tokens/s next to its ETA; a resumed run's ETA counts the remaining steps alone."""

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Begin at the step of the checkpoint."""
        if state.is_world_process_zero:
            self.training_bar = progress_bar(total=state.max_steps, initial=state.global_step, dynamic_ncols=True)
        self.current_step = state.global_step

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Print a row, and keep its tokens/s in sight."""
        super().on_log(args, state, control, logs=logs, **kwargs)
        if self.training_bar is not None and logs and "tokens_per_second" in logs:
            self.training_bar.set_postfix_str(f"{logs['tokens_per_second']:,} tokens/s")


class LogFile(TrainerCallback):
    """Appends every logged row to `log.jsonl`. A resumed run begins with the rows of its checkpoint."""

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Drop the rows of steps after the checkpoint, which are taken again."""
        if state.is_world_process_zero:
            write_log(str(args.output_dir), state.log_history)

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Append a row."""
        if state.is_world_process_zero:
            with Path(str(args.output_dir), LOG_FILE).open("a", encoding="utf-8") as file:
                file.write(_line(state.log_history[-1]))


def write_log(output_dir: str | Path, history: Sequence[Mapping[str, Any]]) -> None:
    """Replace a run's log by these rows."""
    write_atomically(Path(output_dir, LOG_FILE), "".join(map(_line, history)))


def track_as_one_run(trainer: Trainer) -> None:
    """Let wandb, trackio and TensorBoard show a training as one run, however often it is resumed.

    The stock trainer begins a new run each time. Other trackers take the name alone. $WANDB_RUN_ID and
    $TENSORBOARD_LOGGING_DIR win. Steps after the checkpoint are sent again, the same ones.
    """
    args = trainer.args
    if args.process_index or not args.report_to:
        return
    folder = Path(str(args.output_dir))
    identifier = _run_id(folder / TRACKED_RUN)
    args.run_name = f"{folder.resolve().name}-{identifier}"  # trackio continues the run of a name
    for callback in trainer.callback_handler.callbacks:
        if isinstance(callback, TensorBoardCallback) and callback.logging_dir is None:
            callback.logging_dir = str(folder / EVENTS)
    if "wandb" in args.report_to and "WANDB_RUN_ID" not in os.environ:
        _begin_in_wandb(identifier, args.run_name)


def _run_id(path: Path) -> str:
    if not path.is_file():
        write_atomically(path, secrets.token_hex(4))
    return path.read_text(encoding="utf-8").strip()


def _begin_in_wandb(identifier: str, name: str) -> None:
    """Begin or resume a run, which the stock trainer's callback then takes; a caller's own run stays."""
    import wandb  # an extra

    if wandb.run is None:
        project = os.getenv("WANDB_PROJECT", "huggingface")  # as the callback would
        wandb.init(project=project, id=identifier, name=name, resume="allow")


def _line(row: Mapping[str, Any]) -> str:
    """Return a row as JSON in the order in which it comes back from a checkpoint: the step, then by name."""
    return json.dumps({"step": row["step"], **dict(sorted(row.items()))}) + "\n"

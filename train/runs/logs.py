"""What a run shows while it trains: a progress line with its rate and ETA, and every logged row in `log.jsonl`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from transformers import ProgressCallback, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from reflectune.core.durable import write_atomically
from reflectune.core.progress import progress_bar

LOG_FILE = "log.jsonl"
"""The file in `output_dir` with one logged row a line: step, loss, learning rate, tokens/s, what validation found."""


class Progress(ProgressCallback):
    """The stock progress line, with tokens/s beside its ETA; a resumed run's ETA is that of the steps it still does."""

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Begin where the run does."""
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
    """Appends every logged row to `log.jsonl`; a resumed run begins with the rows of its checkpoint, and no others."""

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Drop what was logged after the checkpoint, which is now done again."""
        if state.is_world_process_zero:
            write_log(str(args.output_dir), state.log_history)

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Append a row."""
        if state.is_world_process_zero:
            with Path(str(args.output_dir), LOG_FILE).open("a", encoding="utf-8") as file:
                file.write(_line(state.log_history[-1]))


def write_log(output_dir: str | Path, history: Sequence[Mapping[str, Any]]) -> None:
    """Write a run's rows anew."""
    write_atomically(Path(output_dir, LOG_FILE), "".join(map(_line, history)))


def _line(row: Mapping[str, Any]) -> str:
    """A row by name, as it comes back from a checkpoint; its step first."""
    return json.dumps({"step": row["step"], **dict(sorted(row.items()))}) + "\n"

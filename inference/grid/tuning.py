"""How long the models that a table compares were tuned: steps, passes over the questions, tokens."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

from reflectune.core.durable import read_json

RECORD = "trainer_state.json"
"""What a training leaves beside its weights."""


def tuning(folders: Sequence[Path]) -> str:
    """The means over some checkpoints: `1,472 steps, 8.0 passes over the questions, 6.1 million tokens`.

    Tokens are those that were read, passages included. They are left out where a training did not count them, and
    everything is where one left no record.
    """
    if not all((folder / RECORD).is_file() for folder in folders):
        return "a number of steps that is not recorded"
    states = [read_json(folder / RECORD, "the record of a training") for folder in folders]
    steps, passes, tokens = (
        [state.get(name) or 0 for state in states] for name in ("global_step", "epoch", "num_input_tokens_seen")
    )
    told = f"{statistics.mean(steps):,.0f} steps, {statistics.mean(passes):.1f} passes over the questions"
    return f"{told}, {statistics.mean(tokens) / 1e6:.1f} million tokens" if all(tokens) else told

"""`dtype: auto`: the precision and, on a CPU, the threads of a run, found once and kept when it is resumed."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import torch
from accelerate.utils import broadcast_object_list
from transformers import TrainingArguments

from reflectune.core.compute_trial import ComputeChoice, in_words, try_cpu
from reflectune.train.settings.sft import SftConfig
from reflectune.train.runs.checkpoints import recorded_settings

THREADS = "compute_threads"
"""What a run's record calls its threads; only runs with `dtype: auto` on a CPU have it."""


def settle_compute(config: SftConfig, args: TrainingArguments) -> tuple[SftConfig, dict[str, Any]]:
    """The config with `dtype: auto` decided, and what is recorded of it beside `dtype`; any other dtype stays.

    On an accelerator it is bfloat16. On a CPU the first process tries, and all take what it finds; a run that goes on
    takes what its record says. $OMP_NUM_THREADS wins over both.

    Args:
        config: The run's.
        args: The trainer's, which have joined the processes.
    """
    if config.dtype != "auto":
        return config, {}
    if args.device.type != "cpu":
        return replace(config, dtype="bfloat16"), {}
    before = recorded_settings(config.output_dir) if config.resume else None
    if before is not None and THREADS in before:
        choice = ComputeChoice(before["dtype"], before[THREADS], "as this run began")
    else:
        choices = [try_cpu() if args.process_index == 0 else None]
        if args.world_size > 1:
            broadcast_object_list(choices)
        assert choices[0] is not None
        choice = choices[0]
    threads = torch.get_num_threads() if "OMP_NUM_THREADS" in os.environ else choice.threads
    torch.set_num_threads(threads)
    if args.process_index == 0:
        overruled = "" if threads == choice.threads else f"; $OMP_NUM_THREADS makes it {threads} now"
        print(f"{in_words(choice)}{overruled}", flush=True)
    return replace(config, dtype=choice.dtype), {THREADS: choice.threads}  # type: ignore[arg-type]  # one of the two

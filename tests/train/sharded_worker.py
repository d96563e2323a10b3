"""`train/sft.py` with eyes: each process notes how much of the model it holds; the run may be cut off after a step.

accelerate launch … sharded_worker.py NOTES_FOLDER LAST_STEP --config …        (LAST_STEP 0: not cut off)
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback

from reflectune.train import sft
from reflectune.train.fine_tuning.trainer import ReflectionTrainer

torch.set_num_threads(1)
NOTES, LAST = Path(sys.argv.pop(1)), int(sys.argv.pop(1))


def held(parameter: Any) -> int:
    """Numbers of a parameter that lie in this process between steps."""
    if hasattr(parameter, "ds_tensor"):  # ZeRO-3: the placeholder is empty unless the whole was kept
        return parameter.ds_tensor.numel() + parameter.numel()
    return parameter.to_local().numel() if hasattr(parameter, "to_local") else parameter.numel()


def moments(optimizer: Any) -> int:
    """Numbers of the first moments that lie in this process."""
    inner = optimizer
    while hasattr(inner, "optimizer"):
        inner = inner.optimizer
    states = [state["exp_avg"] for state in inner.state.values() if "exp_avg" in state]
    return sum(held(state) for state in states)


class Look(TrainerCallback):
    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if LAST and state.global_step == LAST:
            os._exit(9)
        parameters = list(kwargs["model"].parameters())
        note = {
            "weights": sum(map(held, parameters)),
            "moments": moments(kwargs["optimizer"]),
            "all": sum(getattr(p, "ds_numel", p.numel()) for p in parameters),
        }
        (NOTES / f"{args.process_index}.json").write_text(json.dumps(note))


original = ReflectionTrainer.train


def train(self: Any, **kwargs: Any) -> Any:
    self.add_callback(Look())
    return original(self, **kwargs)


if __name__ == "__main__":
    ReflectionTrainer.train = train  # type: ignore[method-assign]
    sft.main()

"""`train/sft.py` with eyes: each process notes how much of the model it holds; a run may be cut off after a step.

accelerate launch … sharded_worker.py RUNS.json

The file lists runs: `notes`, a folder; `last`, the step to be cut off after, or 0; `left`, a file that must be there
once it is cut off; `port`, where the run's processes meet; `argv`, the command line of `train/sft.py`. Each run is a
fork of a process that has imported the libraries: they are imported once, and no run sees what another left in memory.
"""

import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback

from reflectune.train import sft
from reflectune.train.runs.supervised import fine_tune  # noqa: F401  imported before the fork
from reflectune.train.runs.trainer import ReflectionTrainer

torch.set_num_threads(1)


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
    def __init__(self, notes: Path, last: int) -> None:
        self.notes, self.last = notes, last

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.last and state.global_step == self.last:
            os._exit(9)
        parameters = list(kwargs["model"].parameters())
        note = {
            "weights": sum(map(held, parameters)),
            "moments": moments(kwargs["optimizer"]),
            "all": sum(getattr(p, "ds_numel", p.numel()) for p in parameters),
        }
        (self.notes / f"{args.process_index}.json").write_text(json.dumps(note))


def train(settings: dict[str, Any]) -> None:
    """Train in this process."""
    original = ReflectionTrainer.train

    def watched(self: Any, **kwargs: Any) -> Any:
        self.add_callback(Look(Path(settings["notes"]), settings["last"]))
        return original(self, **kwargs)

    ReflectionTrainer.train = watched  # type: ignore[method-assign]
    # rank 0 opens a port for each run, as without torchrun's agent
    os.environ |= {"MASTER_PORT": str(settings["port"]), "TORCHELASTIC_USE_AGENT_STORE": "False"}
    sys.argv[1:] = settings["argv"]
    sft.sft.main()


if __name__ == "__main__":
    if os.environ.get("ACCELERATE_USE_DEEPSPEED") == "true":
        communication: Any = importlib.import_module("deepspeed.comm.torch")  # imported before the fork
        communication.build_shm_op = lambda: None  # it adds up what processes infer; building it takes a minute
    launcher = os.getppid()
    for settings in json.loads(Path(sys.argv[1]).read_text()):
        if (child := os.fork()) == 0:
            os.getppid = lambda: launcher  # the processes of a launch know one another by it
            train(settings)
            sys.exit()
        failed = os.waitpid(child, 0)[1] != 0
        if failed != bool(settings["last"]):
            sys.exit(f"the run {settings['argv']} {'failed' if failed else 'was not cut off'}")
        if failed and not Path(settings["left"]).is_file():
            sys.exit(f"the run {settings['argv']} was cut off before it wrote {settings['left']}")

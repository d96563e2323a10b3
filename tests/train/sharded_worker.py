"""`train/sft.py` with eyes: each process notes how much of the model it holds; a run may be cut off after a step.

accelerate launch … sharded_worker.py RUNS.json

The file lists runs: `notes`, a folder; `fault`, one of `FAULTS` or ""; `left`, a file that must be there after it;
`port`, where the run's processes meet; `argv`, the command line of `train/sft.py`. Each run is a fork of a process that
has imported the libraries: they are imported once, and no run sees what another left in memory.

A GPU's precision, bfloat16, is allowed here on CPUs too.
"""

import importlib
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from transformers import TrainerCallback, training_args

from reflectune.models.attention.positions import inner_model
from reflectune.train import sft
from reflectune.train.runs import skeleton
from reflectune.train.runs.supervised import fine_tune  # noqa: F401  imported before the fork
from reflectune.train.runs.trainer import ReflectionTrainer

torch.set_num_threads(1)
FAULTS = {"cut": (9, 1), "nan": (1, 2), "sigterm": (143,), "full in forward": (0,)}
"""The statuses that a run ends with: cut off while it saves step 4, a NaN gradient in step 4, SIGTERM in step 3, no
memory for more than 700 tokens in a forward pass of one process.
"""


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
    def __init__(self, notes: Path) -> None:
        self.notes, self.gradients, self.copies = notes, 0, 0
        original = Accelerator.get_state_dict

        def get_state_dict(*args: Any, **kwargs: Any) -> Any:
            self.copies += 1
            return original(*args, **kwargs)

        Accelerator.get_state_dict = get_state_dict  # type: ignore[method-assign]

    def on_substep_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.gradients = sum(held(p.grad) for p in kwargs["model"].parameters() if p.grad is not None)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        parameters, sharded = list(kwargs["model"].parameters()), getattr(kwargs["optimizer"], "optimizer", None)
        policy = getattr(getattr(AcceleratorState(), "fsdp_plugin", None), "mixed_precision_policy", None)
        note = {
            "weights": sum(map(held, parameters)),
            "moments": moments(kwargs["optimizer"]),
            "all": sum(getattr(p, "ds_numel", p.numel()) for p in parameters),
            "gradients": self.gradients,
            "copies": self.copies,
            "sums": str(getattr(sharded, "gradient_accumulation_dtype", "")),
            "means": str(getattr(sharded, "communication_data_type", getattr(policy, "reduce_dtype", ""))),
        }
        (self.notes / f"{args.process_index}.json").write_text(json.dumps(note))


def train(settings: dict[str, Any]) -> None:
    """Train in this process."""
    original = ReflectionTrainer.train

    def watched(self: Any, **kwargs: Any) -> Any:
        self.add_callback(Look(Path(settings["notes"])))
        return original(self, **kwargs)

    ReflectionTrainer.train = watched  # type: ignore[method-assign]
    compute_loss, save = ReflectionTrainer.compute_loss, torch.save

    def cut_off(content: Any, path: Any, *rest: Any, **named: Any) -> None:
        if settings["fault"] == "cut" and "checkpoint-4" in str(path):
            os._exit(9)
        save(content, path, *rest, **named)

    def faulty(self: Any, *args: Any, **kwargs: Any) -> Any:
        tokens = args[1]["input_ids"].numel()
        due = (settings["fault"], self.state.global_step) if self.args.process_index == 1 else None
        if settings["fault"] == "full in forward" and due and tokens > 700:
            layer = inner_model(args[0]).model.language_model.layers[0]
            handle = layer.register_forward_pre_hook(run_out_of_memory)
            try:
                compute_loss(self, *args, **kwargs)
            finally:
                handle.remove()
        loss = compute_loss(self, *args, **kwargs)
        if due == ("sigterm", 2):
            os.kill(os.getpid(), signal.SIGTERM)
        if due == ("nan", 3):
            loss.register_hook(lambda gradient: gradient * torch.nan)
        return loss

    def run_out_of_memory(*_: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    ReflectionTrainer.compute_loss, torch.save = faulty, cut_off  # type: ignore[method-assign]
    if "bfloat16" in settings["argv"]:
        skeleton.refuse_bad_launch = lambda *_: None
        training_args.is_torch_bf16_gpu_available = lambda *_: True
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
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if status not in FAULTS.get(settings["fault"], (0,)):
            sys.exit(f"the run {settings['argv']} with the fault {settings['fault']!r} ended with {status}")
        if settings["fault"] and not Path(settings["left"]).is_file():
            sys.exit(f"the run {settings['argv']} ended before it wrote {settings['left']}")

"""`train/sft.py` on a simulated GPU, which notes what waits for the GPU between the ends of two steps.

gpu_worker.py NOTES --config …
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback

from reflectune.train import sft
from reflectune.train.runs import utilization
from reflectune.train.runs.trainer import ReflectionTrainer

torch.set_num_threads(1)


class Notes(TrainerCallback):
    """Notes how often the GPU was waited for until the end of each step."""

    def __init__(self, machine: Any) -> None:
        self.machine, self.counts = machine, list[int]()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.counts.append(len(self.machine.waits))


if __name__ == "__main__":
    sys.path.append(str(Path(__file__).parents[3]))
    from tests.pretend_devices import gpus

    file, sys.argv[1:] = Path(sys.argv[1]), sys.argv[2:]
    utilization.PRODUCT = (8, 8, 8)  # the timed product, which takes a GPU 0.1 s
    original = ReflectionTrainer.train
    with gpus() as machine:
        notes = Notes(machine)

        def noted(self: Any, **kwargs: Any) -> Any:
            self.add_callback(notes)
            return original(self, **kwargs)

        ReflectionTrainer.train = noted  # type: ignore[method-assign]
        sft.sft.main()
    steps = zip(notes.counts, notes.counts[1:], strict=False)
    file.write_text(json.dumps([machine.waits[first:last] for first, last in steps]))

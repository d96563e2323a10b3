"""Run a script on a simulated GPU, and note what waits for the GPU between the ends of two training steps.

simulated_gpu.py NOTES SCRIPT …
"""

import json
import runpy
import sys
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from reflectune.train.runs import utilization
from reflectune.train.runs.trainer import ReflectionTrainer


class Notes(TrainerCallback):
    """Notes how often the GPU was waited for until the end of each step."""

    def __init__(self, machine: Any) -> None:
        self.machine, self.counts = machine, list[int]()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.counts.append(len(self.machine.waits))


if __name__ == "__main__":
    _, file, script, *_ = sys.argv
    del sys.argv[:2]
    sys.path[:0] = [str(Path(script).parent), str(Path(__file__).parents[1])]
    from tests.pretend_devices import gpus

    utilization.PRODUCT = (8, 8, 8)  # the timed product, which takes a GPU 0.1 s
    original = ReflectionTrainer.train
    with gpus() as machine:
        notes = Notes(machine)

        def noted(self: Any, **kwargs: Any) -> Any:
            self.add_callback(notes)
            return original(self, **kwargs)

        ReflectionTrainer.train = noted  # type: ignore[method-assign]
        runpy.run_path(script, run_name="__main__")
    steps = zip(notes.counts, notes.counts[1:], strict=False)
    Path(file).write_text(json.dumps([machine.waits[first:last] for first, last in steps]))

"""`train/sft.py` up to its first step; each process writes down how much anonymous memory it took to get there.

accelerate launch … start_up_worker.py NOTES --config …

A note has bytes: `peak`, the most that was held at once, and `before`, when the libraries were imported; and at the end
how many numbers of the model's weights lie in the process, and in which precisions.
"""

import ctypes
import json
import re
import sys
import threading
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback

from reflectune.train import sft
from reflectune.train.runs.supervised import fine_tune  # noqa: F401  imported before memory is measured
from reflectune.train.runs.trainer import ReflectionTrainer

torch.set_num_threads(1)
_M_MMAP_THRESHOLD = -3  # of glibc: blocks from this size on are given back when they are freed
ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, 64 * 2**10)
_EVERY = 0.001
"""Seconds between two looks at the memory."""


def anonymous() -> int:
    """Return the bytes of this process's memory without mapped files, which are shared with other processes."""
    found = re.search(r"RssAnon:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found
    return int(found[1]) * 1024


class Watch(threading.Thread):
    """Notes the peak until the first step begins."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.before = self.peak = anonymous()
        self.over = threading.Event()

    def run(self) -> None:
        while not self.over.wait(_EVERY):
            self.peak = max(self.peak, anonymous())


class Stop(TrainerCallback):
    """Ends the process where training would begin."""

    def __init__(self, notes: Path, watch: Watch) -> None:
        self.notes, self.watch = notes, watch

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.watch.over.set()
        self.watch.join()
        parameters = list(kwargs["model"].parameters())
        held = [p.to_local().numel() if hasattr(p, "to_local") else p.numel() for p in parameters]
        dtypes = sorted({str(p.dtype) for p in parameters})
        note = {"before": self.watch.before, "peak": self.watch.peak, "held": sum(held), "dtypes": dtypes}
        (self.notes / f"{args.process_index}.json").write_text(json.dumps(note))
        raise SystemExit


if __name__ == "__main__":
    notes, sys.argv[1:] = Path(sys.argv[1]), sys.argv[2:]
    original = ReflectionTrainer.train
    watch = Watch()

    def watched(self: Any, **kwargs: Any) -> Any:
        self.add_callback(Stop(notes, watch))
        return original(self, **kwargs)

    ReflectionTrainer.train = watched  # type: ignore[method-assign]
    watch.start()
    sft.sft.main()

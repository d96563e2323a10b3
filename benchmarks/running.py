"""What the benchmarks on models of a given size share: their command line, their clock, and their Markdown files."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from geometry import SIZES


def parser(description: str | None, *, threads: int = 1) -> argparse.ArgumentParser:
    """The arguments that choose models, device and output file; a benchmark adds its own."""
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--families", nargs="+", default=["llava", "qwen2_vl"])
    made.add_argument("--size", choices=SIZES, default="small")
    made.add_argument("--device", default="cpu")
    made.add_argument("--dtype", default="float32")
    made.add_argument("--threads", type=int, default=threads)
    made.add_argument("--output", type=Path, help="Markdown file; printed in any case")
    return made


def timed(
    run: Callable[[], Any], device: str, repeats: int = 1, clock: Callable[[], float] = time.perf_counter
) -> tuple[float, Any]:
    """The least seconds of some calls, and what the last one returned; `time.process_time` counts the CPU's."""
    seconds, result = [], None
    for _ in range(repeats):
        wait(device)
        start = clock()
        result = run()
        wait(device)
        seconds.append(clock() - start)
    return min(seconds), result


def wait(device: str) -> None:
    """Until a GPU has done what it was given."""
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def write(arguments: argparse.Namespace, title: str, script: str, how: str, lines: Sequence[str]) -> None:
    """Write lines below a title and a sentence that says how they were measured, if a file was asked for."""
    if arguments.output:
        where = "one GPU" if arguments.device.startswith("cuda") else f"{arguments.threads} CPU thread(s)"
        head = f"# {title}\n\n`python benchmarks/{script}`, {where}, {arguments.dtype}, {how}.\n\n"
        arguments.output.write_text(head + "\n".join(lines) + "\n", encoding="utf-8")

"""Measure the shared-prefix engine on a CPU against a repeated cache, batched rows and single rows.

    python benchmarks/inference.py

The measurements are those of `gpu.py`, on smaller models and in float32. Weights are random.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch
from gpu import Figures, inference
from gpu_tables import ANSWERS, NEW, PASSAGES, PROBED, TOKENS, inference_tables
from results import Benchmark
from workload import FAMILIES, NAMES, SIZES

from reflectune.examples.scores import at


def tables(figures: dict[str, Any]) -> list[str]:
    """Return the page's tables."""
    lines = [*figures.get("notes", ()), "", *inference_tables(figures)]
    for family in (name for name in FAMILIES if name in figures):
        found = figures[family]
        far = found["largest difference of a gate from batched rows"]
        equal = found["answers equal to the repeated cache's"]["engine"]
        lines.append(
            f"- {NAMES[family]}: gates differ from batched rows' by {far['engine']:.0e} (engine) and "
            f"{far['repeated cache']:.0e} (repeated cache); {equal} of {ANSWERS} answers are equal to the cache's."
        )
    return lines


def claims(figures: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Return the rows of the board."""
    rows = []
    for family in (name for name in FAMILIES if name in figures):
        ours, cache, flat = (
            at(figures, family, "answers", row) for row in ("engine", "repeated cache", "batched rows")
        )
        reference = f"repeated cache {cache:.2f} s, batched rows {flat:.2f} s"
        rows.append((f"{NAMES[family]}, one CPU thread: 20 gates and 4 answers", f"{ours:.2f} s", reference))
    return rows


BENCHMARK = Benchmark(
    "inference",
    "Shared prefixes on a CPU",
    f"""
Random weights in float32, CPU seconds of one thread: medians of three calls, or one call if it takes more than 20
seconds. A question has an image of 576 tokens and {PASSAGES} passages of {TOKENS} tokens; {ANSWERS} answers of {NEW}
tokens follow the passages with the highest gates. *Probe*: answers of {PROBED} tokens after all passages. All sides
have the same weights, passages and lengths. [gpu.md](gpu.md) explains the rows, and has the same measurements at 7B.
""",
    tables,
    claims,
)


def main() -> None:
    """Measure every family, and write the results."""
    parser = BENCHMARK.parser(__doc__)
    parser.add_argument("--size", choices=SIZES, help="of every family")
    parser.add_argument("--threads", type=int, default=1)
    arguments = BENCHMARK.parse(parser)
    torch.set_num_threads(arguments.threads)
    arguments.device, arguments.dtype, arguments.packed = "cpu", "float32", False
    figures, given = dict[str, Any](), arguments.size
    with tempfile.TemporaryDirectory() as folder:
        for family, size in FAMILIES.items():
            kept = Figures(Path(folder, family), "cpu", repeats=3, longest=20.0)
            arguments.size = given or size
            inference(family, arguments, kept)
            figures[family] = kept.values
    return BENCHMARK.finish(figures, arguments)


if __name__ == "__main__":
    main()

"""Measure the shared-prefix engine on a CPU against a repeated cache, batched rows and single rows.

    python benchmarks/inference.py

The measurements are those of `gpu.py`, on smaller models and in float32, with every answer compared; and the time of
several questions about one picture, which the engine reads once. Weights are random.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from gpu import ANSWERS, PASSAGES, PROBED, QUESTIONS, TOKENS, Figures, inference, inference_tables
from results import Benchmark, table
from workload import FAMILIES, SIZES, build, engine_gates, engine_of, passages, question, timed

from reflectune.examples.scores import at


def shared_pictures(family: str, size: str) -> dict[str, float]:
    """Time the gates of 8 questions about 8 pictures and about one; one passage each."""
    model = build(family, SIZES[size])
    different = [question(model, seed=seed) for seed in range(QUESTIONS)]
    same = [replace(prefix, vision=different[0].vision) for prefix in different]
    branches = [passages(model, 1, TOKENS, seed=seed) for seed in range(QUESTIONS)]
    engine = engine_of(model)
    return {
        name: round(timed(partial(engine_gates, engine, prefixes, branches), repeats=3)[0], 3)
        for name, prefixes in (("8 pictures", different), ("one picture", same))
    }


def tables(figures: dict[str, Any]) -> list[str]:
    """Return the page's tables."""
    lines = inference_tables(figures)
    for family in FAMILIES:
        found = figures[family]
        far, equal = (
            found["largest difference of a gate from batched rows"],
            found["answers equal to the repeated cache's"],
        )
        lines.append(
            f"- {family}: gates differ from batched rows' by {far['engine']:.0e} (engine) and "
            f"{far['repeated cache']:.0e} (repeated cache); {equal['engine']} of {ANSWERS} answers are equal."
        )
    rows = [(family, *figures["shared pictures"][family].values()) for family in FAMILIES]
    return [*lines, "", *table(("gates of 8 questions, s", "8 pictures", "one picture"), rows)]


def claims(figures: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Return the rows of the board."""
    rows = []
    for family, name in (("llava", "LLaVA"), ("qwen2_vl", "Qwen2-VL")):
        ours, cache, flat = (
            at(figures, family, "answers", row) for row in ("engine", "repeated cache", "batched rows")
        )
        reference = f"repeated cache {cache:.2f} s, batched rows {flat:.2f} s"
        rows.append((f"{name}, small, one CPU thread: 20 gates and 4 answers", f"{ours:.2f} s", reference))
    return rows


BENCHMARK = Benchmark(
    "inference",
    "Shared prefixes on a CPU",
    f"""
Random weights, float32, one thread, medians. A question has a picture of 576 tokens and {PASSAGES} passages of
{TOKENS} tokens. Both sides have the same weights, passages and lengths; [gpu.md](gpu.md) explains the rows, and has the
same at 7 B. *Probe*: answers of {PROBED} tokens behind all passages.
""",
    tables,
    claims,
)


def main() -> None:
    """Measure both families, and write the results."""
    parser = BENCHMARK.parser(__doc__)
    parser.add_argument("--size", choices=SIZES, default="small")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    if arguments.page:
        return BENCHMARK.write_page(arguments)
    torch.set_num_threads(arguments.threads)
    arguments.device, arguments.dtype, arguments.packed = "cpu", "float32", False
    figures: dict[str, Any] = {"shared pictures": {}}
    with tempfile.TemporaryDirectory() as folder:
        for family in FAMILIES:
            kept = Figures(Path(folder, family), "cpu", repeats=3)
            inference(family, arguments, kept)
            figures[family] = kept.values
            figures["shared pictures"][family] = shared_pictures(family, arguments.size)
    return BENCHMARK.finish(figures, arguments)


if __name__ == "__main__":
    main()

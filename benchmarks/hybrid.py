"""Measure shared prefixes and trees on Qwen3.5, whose layers have linear attention in three of four, on a CPU.

    python benchmarks/hybrid.py

Widths are those of the 0.8 B, with one layer of full attention behind three of linear attention. Weights are random.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from results import Benchmark, table
from workload import SIZES, batched_rows, build, engine_gates, engine_of, flat_rows, passages, question, tree_of

from reflectune.models.attention.collation import TreeCollator, loss_terms

FAMILY = "qwen3_5"


def timed(run: Callable[[], Any]) -> tuple[float, Any]:
    """Return the CPU seconds of a call and its result: other processes of the machine don't count."""
    start = time.process_time()
    result = run()
    return time.process_time() - start, result


def inference(arguments: argparse.Namespace) -> dict[str, Any]:
    """Time the gates of a question's passages by the engine and by one forward pass each."""
    model = build(FAMILY, SIZES[arguments.size])
    prefix, branches = question(model), passages(model, arguments.passages, arguments.tokens)
    alone, expected = timed(partial(batched_rows, model, prefix, branches, rows=1))
    engine = engine_of(model)
    ours, gates = timed(partial(engine_gates, engine, [prefix], [branches]))
    tokens = len(prefix.ids) * arguments.passages, len(prefix.ids)
    read = arguments.passages * arguments.tokens
    return {
        "one forward each": {"seconds": round(alone, 3), "tokens": tokens[0] + read},
        "engine": {"seconds": round(ours, 3), "tokens": tokens[1] + read},
        "largest difference of a gate": float((gates[0] / expected - 1).abs().max()),
    }


def training(arguments: argparse.Namespace) -> dict[str, Any]:
    """Time a step on a tree and on flat rows of the same question, read by transformers' own layers."""
    model: Any = build(FAMILY, SIZES[arguments.size])
    model.model.visual.requires_grad_(False)
    model.train()
    tree = tree_of(model, arguments.branches, arguments.branch_tokens)
    rows = flat_rows(model, tree)

    def flat_step() -> tuple[float, float]:
        model.zero_grad()
        model.model.rope_deltas = None
        loss = model(**rows, use_cache=False).loss
        loss.backward()
        return float(loss.detach()), _gradient(model)

    def tree_step(batch: Any) -> tuple[float, float]:
        model.zero_grad()
        loss, weight = loss_terms(model, batch)
        (loss / weight).backward()
        return float((loss / weight).detach()), _gradient(model)

    flat, (flat_loss, flat_norm) = timed(flat_step)
    batch = TreeCollator(model)([tree])
    ours, (loss, norm) = timed(partial(tree_step, batch))
    return {
        "flat rows": {"seconds": round(flat, 3), "tokens": rows["input_ids"].numel(), "loss": flat_loss},
        "tree": {"seconds": round(ours, 3), "tokens": tree.length, "loss": loss},
        "difference of the gradient's norm": abs(norm / flat_norm - 1),
    }


def _gradient(model: Any) -> float:
    return float(sum(p.grad.square().sum() for p in model.parameters() if p.grad is not None)) ** 0.5


def tables(figures: dict[str, Any]) -> list[str]:
    """Return the page's tables."""
    rows = []
    for title, (plain, ours), far in (
        ("gates of a question", ("one forward each", "engine"), "largest difference of a gate"),
        ("a training step", ("flat rows", "tree"), "difference of the gradient's norm"),
    ):
        found = figures["inference" if ours == "engine" else "training"]
        ratio, tokens = (found[plain][of] / found[ours][of] for of in ("seconds", "tokens"))
        times = (found[plain]["seconds"], found[ours]["seconds"])
        rows.append((title, *times, f"{ratio:.2f} ×", f"{tokens:.2f} ×", f"{far} {found[far]:.0e}"))
    return table(("Qwen3.5, s", "whole rows", "shared", "faster", "fewer tokens", ""), rows)


def claims(figures: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Return the rows of the board."""
    read, trained = figures["inference"], figures["training"]
    return [
        (
            "Qwen3.5 (hybrid), one CPU thread: 20 gates",
            f"{read['engine']['seconds']:.2f} s",
            f"one forward each {read['one forward each']['seconds']:.2f} s",
        ),
        (
            "Qwen3.5 (hybrid), one CPU thread: a step on a tree of 8 passages",
            f"{trained['tree']['seconds']:.2f} s",
            f"flat rows {trained['flat rows']['seconds']:.2f} s",
        ),
    ]


BENCHMARK = Benchmark(
    "hybrid",
    "Hybrid models: shared prefixes and trees",
    """
Random weights of Qwen3.5, float32, transformers' reference kernels, CPU seconds of one thread, measured once. The model
has the widths of the 0.8 B, three layers of linear and one of full attention, and a small vision tower. A question has
a picture of 576 tokens, 24 words and 20 passages of 120 tokens; for training, 8 passages of 137. A branch begins with a
copy of its prefix's states. Whole rows read the picture in each.
""",
    tables,
    claims,
)


def main() -> None:
    """Measure both, and write the results."""
    parser = BENCHMARK.parser(__doc__)
    parser.add_argument("--size", choices=SIZES, default="hybrid")
    parser.add_argument("--passages", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=120)
    parser.add_argument("--branches", type=int, default=8)
    parser.add_argument("--branch_tokens", type=int, default=137)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    if arguments.page:
        return BENCHMARK.write_page(arguments)
    torch.set_num_threads(arguments.threads)
    return BENCHMARK.finish({"inference": inference(arguments), "training": training(arguments)}, arguments)


if __name__ == "__main__":
    main()

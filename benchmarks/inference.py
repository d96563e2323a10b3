"""Measure the shared-prefix engine on a CPU against a repeated cache, batched rows and single rows.

    python benchmarks/inference.py

The measurements are those of `gpu.py`, on smaller models and in float32, with every answer compared; and the time of
several questions about one image, which the engine reads once. Weights are random.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from gpu import Figures, inference
from gpu_tables import ANSWERS, PASSAGES, PROBED, QUESTIONS, TOKENS, inference_tables
from results import Benchmark, table
from workload import (
    FAMILIES,
    SIZES,
    batched_rows,
    build,
    engine_gates,
    engine_of,
    flat_rows,
    passages,
    question,
    timed,
    tree_of,
)

from reflectune.examples.scores import at
from reflectune.models.attention.collation import TreeCollator, loss_terms


def shared_images(family: str, size: str) -> dict[str, float]:
    """Time the gates of 8 questions about 8 images and about one; one passage each."""
    model = build(family, size)
    different = [question(model, seed=seed) for seed in range(QUESTIONS)]
    same = [replace(prefix, vision=different[0].vision) for prefix in different]
    branches = [passages(model, 1, TOKENS, seed=seed) for seed in range(QUESTIONS)]
    engine = engine_of(model)
    return {
        name: round(timed(partial(engine_gates, engine, prefixes, branches), repeats=3)[0], 3)
        for name, prefixes in (("8 images", different), ("one image", same))
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
    rows = [(family, *figures["shared images"][family].values()) for family in FAMILIES]
    return [*lines, "", *table(("gates of 8 questions, s", "8 images", "one image"), rows)]


def hybrid_inference() -> dict[str, Any]:
    """Time the gates of a question's passages by the engine and by one forward pass each."""
    model = build("qwen3_5", "hybrid")
    prefix, branches = question(model), passages(model, PASSAGES, TOKENS)
    alone, expected = timed(partial(batched_rows, model, prefix, branches, rows=1))
    engine = engine_of(model)
    ours, gates = timed(partial(engine_gates, engine, [prefix], [branches]))
    tokens = len(prefix.ids) * PASSAGES, len(prefix.ids)
    read = PASSAGES * TOKENS
    return {
        "one forward each": {"seconds": round(alone, 3), "tokens": tokens[0] + read},
        "engine": {"seconds": round(ours, 3), "tokens": tokens[1] + read},
        "largest difference of a gate": float((gates[0] / expected - 1).abs().max()),
    }


def hybrid_training() -> dict[str, Any]:
    """Time a step on a tree and on flat rows of the same question, read by transformers' own layers."""
    model: Any = build("qwen3_5", "hybrid")
    model.model.visual.requires_grad_(False)
    model.train()
    tree = tree_of(model, 8, TOKENS + 17)
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


def hybrid_tables(figures: dict[str, Any]) -> list[str]:
    """Return the table of a hybrid model."""
    lines = [
        "Qwen3.5 by transformers' own kernels: three layers of linear attention, one of full, the 0.8 B's widths;",
        "Once. Whole rows read the image in each; for training they are 8 branches of 137 tokens.",
        "",
    ]
    rows = []
    for title, (plain, ours), far in (
        ("gates of a question", ("one forward each", "engine"), "largest difference of a gate"),
        ("a training step", ("flat rows", "tree"), "difference of the gradient's norm"),
    ):
        found = figures["inference" if ours == "engine" else "training"]
        ratio, tokens = (found[plain][of] / found[ours][of] for of in ("seconds", "tokens"))
        times = (found[plain]["seconds"], found[ours]["seconds"])
        rows.append((title, *times, f"{ratio:.2f} ×", f"{tokens:.2f} ×", f"{far} {found[far]:.0e}"))
    return lines + table(("Qwen3.5, s", "whole rows", "shared", "faster", "fewer tokens", ""), rows)


def hybrid_claims(figures: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Return the rows of the board about a hybrid model."""
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


def claims(figures: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Return the rows of the board."""
    if "training" in figures:
        return hybrid_claims(figures)
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
Random weights, float32, CPU seconds of one thread, medians. A question has an image of 576 tokens and {PASSAGES}
passages of {TOKENS} tokens. Both sides have the same weights, passages and lengths; [gpu.md](gpu.md) explains the rows,
and has the same at 7 B. *Probe*: answers of {PROBED} tokens after all passages.
""",
    tables,
    claims,
    {"hybrid": hybrid_tables},
)


def main() -> None:
    """Measure both families, and write the results."""
    parser = BENCHMARK.parser(__doc__)
    parser.add_argument("--size", choices=SIZES, default="small")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--hybrid", action="store_true", help="measure Qwen3.5, in inference and training")
    arguments = BENCHMARK.parse(parser)
    torch.set_num_threads(arguments.threads)
    figures: dict[str, Any] = {}
    if arguments.hybrid:
        figures = {"inference": hybrid_inference(), "training": hybrid_training()}
        BENCHMARK.write(figures, arguments, "hybrid")
        return BENCHMARK.write_page(arguments)
    arguments.device, arguments.dtype, arguments.packed = "cpu", "float32", False
    figures = {"shared images": {}}
    with tempfile.TemporaryDirectory() as folder:
        for family in FAMILIES:
            kept = Figures(Path(folder, family), "cpu", repeats=3)
            inference(family, arguments, kept)
            figures[family] = kept.values
            figures["shared images"][family] = shared_images(family, arguments.size)
    return BENCHMARK.finish(figures, arguments)


if __name__ == "__main__":
    main()

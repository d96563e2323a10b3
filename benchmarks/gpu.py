"""Compare the toolkit at the size of 7B with simple code of transformers, on one GPU, in one command.

    python benchmarks/gpu.py --results OUT                                        # a GPU of 80 GB, at most 25 minutes
    python benchmarks/gpu.py --results OUT --sections training gradients weights  # training alone: at most 9
    python benchmarks/gpu.py --results OUT --device cpu --size tiny --dtype float32 --packed    # a smoke test

Each section is a process with a time limit. Figures are written after each measurement, so a section that is cut off
keeps the figures it has. A measurement that fails is recorded with its error. Sections that are measured by several
commands, with the same commit on the same machine, are joined in one file. Weights are random.
"""

from __future__ import annotations

import argparse
import functools
import math
import os
import shutil
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gpu_training
import torch
import workload as w
from gpu_tables import (
    ANSWERS,
    FAMILIES,
    LONG,
    LONG_GATES,
    NEW,
    PASSAGES,
    PROBED,
    QUESTIONS,
    TOKENS,
    claims,
    tables,
)
from gpu_training import TREES
from results import Benchmark
from torch.profiler import ProfilerActivity
from torch.profiler import profile as profiler

from reflectune.core.durable import read_json, write_json
from reflectune.train.runs.utilization import product_rate

LIMITS = {"exact": 90, "llava": 200, "qwen2_vl": 200, "qwen3_5": 400, "again": 45}
LIMITS |= {"training": 110, "gradients": 120, "weights": 300}
"""Seconds of each section: those of inference take 16 minutes together, those of training 9."""
REPEATS = 3
"""Timed calls of each measurement on a GPU, after one that isn't."""
LONGER = 48
"""Tokens of the longer answers that a decode step is measured by."""


class Figures:
    """Figures of a section, written to a file after each measurement."""

    def __init__(self, path: Path, device: str, repeats: int, longest: float = math.inf) -> None:
        self._path, self._device, self.values = path, device, dict[str, Any]()
        self._repeats, self._longest = repeats, longest  # see `timed`

    def put(self, name: str, row: str, value: Any) -> None:
        """Keep one figure, and write them all."""
        self.values.setdefault(name, {})[row] = value
        print(f"{name}, {row}: {value}", flush=True)
        write_json(self._path, self.values)

    def time(self, name: str, row: str, run: Callable[[], Any], share: int = 1) -> Any:
        """Time calls, keep the median divided by `share` and the peak memory, and return the last call's result.

        A call that fails is kept as an error, and None is returned.
        """
        on_gpu = self._device == "cuda"
        try:
            if on_gpu:
                torch.cuda.empty_cache()
                torch.cuda.reset_peak_memory_stats()
            seconds, result = w.timed(run, self._device, self._repeats, int(on_gpu), self._longest)
        except Exception as error:  # the section goes on: the error is the figure
            traceback.print_exc()
            self.put("errors", f"{name}, {row}", f"{type(error).__name__}: {error}".splitlines()[0][:200])
            return None
        self.put(name, row, round(seconds / share, 5))
        if on_gpu:
            self.put(f"{name}, GiB", row, round(torch.cuda.max_memory_allocated() / 2**30, 2))
        return result


def exact(arguments: argparse.Namespace, figures: Figures) -> None:
    """Compare gates and answers of the engine with those of single rows, in float32."""
    for family in FAMILIES:
        size = "tiny" if arguments.size == "tiny" else "small"
        model = w.build(family, size, device=arguments.device)
        prefix, branches = w.question(model), w.passages(model, PASSAGES, TOKENS)
        expected = w.batched_rows(model, prefix, branches, rows=1)
        best = expected.topk(ANSWERS).indices.tolist()
        answers = [w.batched_generate(model, [prefix], [[branches[k]]], NEW)[0] for k in best]
        engine = w.engine_of(model, packed=arguments.packed)
        gates = w.engine_gates(engine, [prefix], [branches])[0]
        figures.put(family, "largest difference of a gate", float((gates - expected).abs().max()))
        figures.put(family, "largest gate", float(expected.max()))
        found = w.engine_answers(engine, [prefix], [branches], ANSWERS, NEW)
        figures.put(family, "equal answers", sum(map(list.__eq__, found, answers)))
        figures.put(family, "answers", ANSWERS)
        del model, engine
        torch.cuda.empty_cache()


def inference(family: str, arguments: argparse.Namespace, figures: Figures) -> None:
    """Time gates, answers and a decode step; on a GPU also those of eight questions, and long passages."""
    model = w.build(family, arguments.size, dtype=getattr(torch, arguments.dtype), device=arguments.device)
    figures.put("model", "parameters", model.num_parameters())
    figures.put("model", "language parameters", w.language_parameters(model))
    prefixes, branches = drawn_questions(model)
    large = arguments.device != "cpu" or arguments.size == "tiny"
    found = rivals(model, prefixes, branches, figures, large=large)
    engine = w.engine_of(model, packed=arguments.packed)  # from here on the model's attention is the engine's
    figures.put("model", "token budget", engine.token_budget)
    first, last = (prefixes[:1], branches[:1]), (prefixes, branches)
    if arguments.device == "cuda" and isinstance(engine.reader, w.PackedReader):
        figures.time("gates", "engine, eager layers", lambda: w.engine_gates(engine, *first))
        compiling(engine, prefixes, branches, figures)
    answer = functools.partial(w.engine_answers, engine)
    gates = figures.time("gates", "engine", lambda: w.engine_gates(engine, *first))
    answers = figures.time("answers", "engine", lambda: answer(*first, ANSWERS, NEW))
    figures.time("answers", "engine, longer", lambda: answer(*first, ANSWERS, LONGER))
    if large:
        gates = figures.time("gates of 8", "engine", lambda: w.engine_gates(engine, *last), QUESTIONS)
        figures.time("answers of 8", "engine", lambda: answer(*last, ANSWERS, NEW), QUESTIONS)
        figures.time("answers of 8", "engine, longer", lambda: answer(*last, ANSWERS, LONGER), QUESTIONS)
        given = prefixes[:1], [w.passages(model, PASSAGES, LONG)]
        figures.time(LONG_GATES, "engine", lambda: w.engine_gates(engine, *given))
    decode_steps(figures)
    figures.time("gates", "engine, question's gate first", lambda: w.engine_gates(engine, *first, first=True))
    figures.time("probe", "engine", lambda: answer(*first, PASSAGES, PROBED))
    for name, values in (("engine", gates), ("repeated cache", found["cache"])):
        if values is not None and found["rows"] is not None:
            agreement(figures, name, values, found["rows"])
    if answers is not None and found["answers"] is not None:
        equal = sum(map(list.__eq__, answers, found["answers"]))
        figures.put("answers equal to the repeated cache's", "engine", equal)
    if arguments.device == "cuda":
        profile(lambda: answer(*first, ANSWERS, LONGER), figures)


def drawn_questions(model: Any) -> tuple[list[Any], list[list[list[int]]]]:
    """Return the prefixes of the questions, and the passages of each."""
    prefixes = [w.question(model, seed=seed) for seed in range(QUESTIONS)]
    return prefixes, [w.passages(model, PASSAGES, TOKENS, seed=50 + seed) for seed in range(QUESTIONS)]


def rivals(model: Any, prefixes: list[Any], branches: list[Any], figures: Figures, *, large: bool) -> dict[str, Any]:
    """Time the simple implementations, and return gates and answers; of eight questions as well if `large`."""
    first, last = (prefixes[:1], branches[:1]), (prefixes, branches)
    ours = functools.partial(w.repeated_cache, model)

    def rows_of(count: int) -> Any:
        return torch.stack([w.batched_rows(model, *pair) for pair in zip(prefixes[:count], branches, strict=False)])

    def answer_rows(count: int) -> list[list[int]]:
        best = [rows.topk(ANSWERS).indices.tolist() for rows in rows_of(count)]
        chosen = [[branches[q][k] for k in kept] for q, kept in enumerate(best)]
        return w.batched_generate(model, prefixes[:count], chosen, NEW)

    rows = figures.time("gates", "batched rows", lambda: rows_of(1))
    figures.time("gates", "one row at a time", lambda: w.batched_rows(model, prefixes[0], branches[0], rows=1))
    cached = figures.time("gates", "repeated cache", lambda: ours(*first)[0])
    chosen = [branches[0][k] for k in (cached if rows is None else rows)[0].topk(ANSWERS).indices.tolist()]
    answers = figures.time("answers", "repeated cache", lambda: ours(*first, ANSWERS, NEW)[1])
    figures.time("answers", "repeated cache, longer", lambda: ours(*first, ANSWERS, LONGER))
    figures.time("answers", "batched rows", lambda: answer_rows(1))
    single = functools.partial(w.batched_generate, model, prefixes[:1])
    figures.time("generate", "batched rows", lambda: single([chosen], NEW))
    figures.time("generate", "batched rows, longer", lambda: single([chosen], LONGER))
    figures.time("probe", "repeated cache", lambda: ours(*first, PASSAGES, PROBED))
    figures.time("probe", "batched rows", lambda: single(branches[:1], PROBED))
    if large:
        rows = figures.time("gates of 8", "batched rows", lambda: rows_of(QUESTIONS), QUESTIONS)
        cached = figures.time("gates of 8", "repeated cache", lambda: ours(*last)[0], QUESTIONS)
        figures.time("answers of 8", "repeated cache", lambda: ours(*last, ANSWERS, NEW), QUESTIONS)
        figures.time("answers of 8", "repeated cache, longer", lambda: ours(*last, ANSWERS, LONGER), QUESTIONS)
        figures.time("answers of 8", "batched rows", lambda: answer_rows(QUESTIONS), QUESTIONS)
        given = w.passages(model, PASSAGES, LONG)
        figures.time(LONG_GATES, "batched rows", lambda: w.batched_rows(model, prefixes[0], given, rows=4))
        figures.time(LONG_GATES, "repeated cache", lambda: ours(prefixes[:1], [given]))
    return {"answers": answers, "rows": rows, "cache": cached}


def compiling(engine: Any, prefixes: list[Any], branches: list[Any], figures: Figures, name: str = "") -> None:
    """Compile the layers, and time their first calls on rows of several lengths with and without earlier keys."""
    engine.reader.compile_after = 0
    start = time.perf_counter()
    for count in (1, QUESTIONS):
        w.engine_gates(engine, prefixes[:count], branches[:count])
        w.engine_gates(engine, prefixes[:count], branches[:count], first=True)
    figures.put(f"compiling{name}, s", "engine", round(time.perf_counter() - start, 1))


def again(arguments: argparse.Namespace, figures: Figures) -> None:
    """Compile LLaVA's layers in a second process, which finds them in the cache on disk."""
    model = w.build("llava", arguments.size, dtype=getattr(torch, arguments.dtype), device=arguments.device)
    prefixes, branches = drawn_questions(model)
    engine = w.engine_of(model, packed=arguments.packed)
    if arguments.device == "cuda" and isinstance(engine.reader, w.PackedReader):
        compiling(engine, prefixes, branches, figures, " again")


def agreement(figures: Figures, name: str, gates: Any, rows: Any) -> None:
    """Compare the log-odds of gates with those of batched rows, and the passages with the highest gates."""
    figures.put("largest difference of a gate from batched rows", name, float((gates - rows).abs().max()))
    differences = (gates.logit() - rows.logit()).abs().flatten()
    figures.put("difference of log-odds, median", name, float(differences.median()))
    figures.put("difference of log-odds, 99 %", name, float(differences.quantile(0.99)))
    figures.put("questions with another best passage", name, int((gates.argmax(1) != rows.argmax(1)).sum()))


def profile(answer: Callable[[], Any], figures: Figures) -> None:
    """Count the launches of gates and answers, and the share of the time in which the GPU computes."""
    start = time.perf_counter()
    with profiler(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as record:
        answer()
    seconds, events = time.perf_counter() - start, record.key_averages()
    launches = sum(event.count for event in events if "Launch" in event.key)
    busy = sum(event.self_device_time_total for event in events if event.self_cpu_time_total == 0) / 1e6
    figures.put(f"launches, {ANSWERS} answers of {LONGER}", "engine", launches)
    figures.put(f"share of GPU time, {ANSWERS} answers of {LONGER}", "engine", round(busy / seconds, 2))


def decode_steps(figures: Figures) -> None:
    """Compute the milliseconds of a decode step from answers of two lengths."""
    for name, rows, share in (
        ("answers", ANSWERS, 1),
        ("answers of 8", QUESTIONS * ANSWERS, QUESTIONS),
        ("generate", ANSWERS, 1),
    ):
        times = figures.values.get(name, {})
        for row in [row for row in times if f"{row}, longer" in times]:
            seconds = share * (times[f"{row}, longer"] - times[row]) / (LONGER - NEW)
            figures.put(f"decode step of {rows} rows, ms", row, round(1000 * seconds, 1))


def run_section(name: str, limit: float, arguments: argparse.Namespace) -> dict[str, Any]:
    """Run a section as a process, and return its figures, also if it failed or was cut off."""
    path = arguments.results / f"gpu_{name}.part"
    path.unlink(missing_ok=True)
    options = [f"--{key}={getattr(arguments, key)}" for key in ("results", "device", "size", "dtype")]
    options += ["--packed"] * arguments.packed
    start, problem = time.monotonic(), None
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(arguments.results / "gpu_compiled")}
    try:
        done = subprocess.run([sys.executable, __file__, "--section", name, *options], timeout=limit, env=environment)
        problem = f"ended with status {done.returncode}" if done.returncode else None
    except subprocess.TimeoutExpired:
        problem = f"cut off after {limit:g} s"
    figures: dict[str, Any] = read_json(path, "the figures of a section") if path.is_file() else {}
    path.unlink(missing_ok=True)
    figures["seconds"] = round(time.monotonic() - start)
    return {**figures, "errors": {**figures.get("errors", {}), name: problem}} if problem else figures


def hardware(device: str) -> dict[str, Any]:
    """Return the GPU's name, the rate of a large matrix product, and the rate of a copy."""
    if device != "cuda":
        return {"gpu": None}
    rate = product_rate(torch.device("cuda"), torch.bfloat16)
    right = torch.randn(4096, 11_008, device="cuda", dtype=torch.bfloat16)
    copied, _ = w.timed(lambda: torch.empty_like(right).copy_(right), "cuda", 20, warm_up=5)
    return {
        "gpu": torch.cuda.get_device_name(),
        "matrix product, TFLOP/s": round(rate / 1e12),
        "copy, TB/s": round(2 * right.numel() * 2 / copied / 1e12, 2),
    }


SECTIONS: dict[str, Callable[[argparse.Namespace, Figures], None]] = {
    "exact": exact,
    "llava": functools.partial(inference, "llava"),
    "qwen2_vl": functools.partial(inference, "qwen2_vl"),
    "qwen3_5": functools.partial(inference, "qwen3_5"),
    "again": again,
    "training": gpu_training.lora_step,
    "gradients": gpu_training.gradients,
    "weights": gpu_training.all_weights,
}


BENCHMARK = Benchmark(
    "gpu",
    "On one GPU",
    f"""
Random weights in bfloat16. A question has an image of 576 tokens and {PASSAGES} passages of {TOKENS} tokens;
{ANSWERS} answers of {NEW} tokens follow the passages with the highest gates. Seconds are medians; *of 8*:
per question, in a batch of eight.

- *Repeated cache*: each prefix is read once, transformers' cache is repeated for the passages, and the chosen rows of
  all questions are decoded in one batch (`repeated_cache` in [workload.py](workload.py)).
- *Batched rows*: a question's whole rows as one batch, then `generate` on all chosen rows.
- *Probe*: answers of {PROBED} tokens after all passages.

LoRA steps (configs/recipes/mr2ag_lora.yaml) have {TREES} questions unless numbered. TFLOP/s count 6 operations per
token and weight, 4 if frozen.
""",
    tables,
    claims,
    joined=True,
)


def main() -> None:
    """Run every section, and write the results after each."""
    parser = BENCHMARK.parser(__doc__)
    parser.add_argument("--sections", nargs="+", choices=SECTIONS, default=list(SECTIONS))
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--size", choices=("7b", "small", "tiny"), default="7b")
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    parser.add_argument("--packed", action="store_true", help="read packed rows on a CPU too, as on a GPU")
    parser.add_argument("--limit", type=float, help="seconds of each section, in place of its own limit")
    parser.add_argument("--section", choices=SECTIONS, help=argparse.SUPPRESS)
    arguments = BENCHMARK.parse(parser)
    arguments.results.mkdir(parents=True, exist_ok=True)
    if arguments.section:
        path = arguments.results / f"gpu_{arguments.section}.part"
        repeats = REPEATS if arguments.device == "cuda" else 1
        return SECTIONS[arguments.section](arguments, Figures(path, arguments.device, repeats))
    figures = hardware(arguments.device)
    shutil.rmtree(arguments.results / "gpu_compiled", ignore_errors=True)  # compiling is measured
    for name in arguments.sections:
        print(f"\n== {name}", flush=True)
        figures[name] = run_section(name, arguments.limit or LIMITS[name], arguments)
        BENCHMARK.write(figures, arguments)
    shutil.rmtree(arguments.results / "gpu_compiled", ignore_errors=True)
    return BENCHMARK.finish(figures, arguments)


if __name__ == "__main__":
    main()

"""Which precision and how many threads a CPU is fastest with, found by timing one product of matrices.

Two threads beside another busy process can be several times slower than one: each waits for the other at every product.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import torch

_DTYPES: Final = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_ROWS, _WIDTH = 256, 1024
_SECONDS = 0.15
"""Of each combination: long enough for a scheduler to interrupt."""
_WORTHWHILE = 1.2
"""How much faster half precision must be to be worth it: weights are cast, and not all of a step is products."""

Rates = Mapping[tuple[str, int], float]
"""GFLOP/s by precision and number of threads."""


@dataclass(frozen=True)
class ComputeChoice:
    """What a CPU computes with.

    Attributes:
        dtype: `float32` or `bfloat16`.
        threads: Of torch, in this process.
        why: In words.
    """

    dtype: str
    threads: int
    why: str


def try_cpu() -> ComputeChoice:
    """Time a product in both precisions, with all threads and with one, or with $OMP_NUM_THREADS alone."""
    most = torch.get_num_threads()
    counts = [most] if "OMP_NUM_THREADS" in os.environ else sorted({1, most}, reverse=True)
    try:
        return choose({(dtype, count): measured_rate(dtype, count) for count in counts for dtype in _DTYPES})
    finally:
        torch.set_num_threads(most)


def choose(rates: Rates) -> ComputeChoice:
    """The fastest combination; float32 unless half precision is clearly faster."""
    best = {
        dtype: max((rate, threads) for (named, threads), rate in rates.items() if named == dtype) for dtype in _DTYPES
    }
    half = best["bfloat16"][0] >= _WORTHWHILE * best["float32"][0]
    dtype = "bfloat16" if half else "float32"
    measured = ", ".join(
        f"{named} {rate:.0f} GFLOP/s with {_threads(threads)}" for (named, threads), rate in rates.items()
    )
    return ComputeChoice(dtype, best[dtype][1], f"by a timed product: {measured}")


def in_words(choice: ComputeChoice) -> str:
    """The line that a run prints."""
    return f"compute: {choice.dtype} with {_threads(choice.threads)}, {choice.why}"


def measured_rate(dtype: str, threads: int) -> float:
    """GFLOP/s of a product in one precision with so many threads, which stay set."""
    torch.set_num_threads(threads)
    made: Sequence[torch.Tensor] = [torch.ones(size, _WIDTH, dtype=_DTYPES[dtype]) for size in (_ROWS, _WIDTH)]
    for _ in range(3):
        torch.nn.functional.linear(*made)
    count, began = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - began) < _SECONDS:
        torch.nn.functional.linear(*made)
        count += 1
    return count * 2 * _ROWS * _WIDTH * _WIDTH / elapsed / 1e9


def _threads(count: int) -> str:
    return f"{count} thread{'s' if count > 1 else ''}"

"""How many tokens to read in one forward pass, if nobody says."""

from __future__ import annotations

import torch

from reflectune.models.prefix.forward import Forward
from reflectune.models.prefix.rows import kept_bytes
from reflectune.models.rendering.renderer import Rendered

CPU_BUDGET = 2_048
"""Small passes stay in a CPU's cache, and nothing is gained by large ones: see benchmarks/shared_prefix.md."""
LARGEST = 65_536
"""Tokens beyond which an accelerator gains nothing."""
KEPT = 4
"""How many budgets of tokens the keys and values may be kept of."""
_TRIAL = 1_024
_SHARE = 0.7
"""Of the free memory; the rest is for pictures and for what is not foreseen."""


def find_budget(forward: Forward) -> int:
    """Tokens of a forward pass that the memory has room for, measured by a trial on an accelerator; a power of two."""
    device = forward.model.device
    if device.type != "cuda":
        return CPU_BUDGET
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    with torch.no_grad():
        read = forward.prefill([Rendered([0] * _TRIAL, [], {})])
    peak = torch.cuda.max_memory_allocated(device) - before
    kept = kept_bytes(read.levels)
    del read
    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info(device)
    return fitting_budget(free, (peak - kept) / _TRIAL, kept / _TRIAL)


def fitting_budget(free: float, passing: float, kept: float) -> int:
    """The largest power of two up to `LARGEST` that fits.

    Args:
        free: Bytes of memory.
        passing: Bytes that one token takes while it is read.
        kept: Bytes of one token's keys and values; those of `KEPT` budgets of branches and as many of prefixes stay.
    """
    tokens = _SHARE * free / (passing + 2 * KEPT * kept)
    return max(1, min(LARGEST, 2 ** int(max(tokens, 1)).bit_length() // 2))

"""Tree attention by parts against a dense mask, forward and backward, at several sizes.

    python benchmarks/tree_attention.py

Prints, for rows of a prefix and K branches, the milliseconds of both and the number of scores that each computes; then,
for batches whose rows differ in length, those of rows grouped by length and of all rows padded to the longest.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable, Sequence
from unittest.mock import patch

import torch
import torch.nn.functional as F
from running import timed
from torch import Tensor

from reflectune.models.attention import tree_mask as attention
from reflectune.models.attention.tree_mask import STRIDE, tree_attention, tree_mask


def segments_of(rows: int, prefix: int, branches: int, tokens: int) -> Tensor:
    """Segments of equal trees, of shape (trees, length), each tree's from its own multiple of STRIDE on."""
    row = torch.tensor([0] * prefix + [k for k in range(1, branches + 1) for _ in range(tokens)])
    return row + torch.arange(rows)[:, None] * STRIDE


def packed(trees: Sequence[Sequence[int]]) -> Tensor:
    """Segments of different trees in one row, each given as the tokens of its prefix and of its branches."""
    codes = [t * STRIDE + k for t, sizes in enumerate(trees) for k, size in enumerate(sizes) for _ in range(size)]
    return torch.tensor([codes])


def all_together(lengths: Sequence[int]) -> list[list[int]]:
    """Rows of whatever lengths in one group."""
    return [sorted(range(len(lengths)), key=lengths.__getitem__)]


def time_by_parts(segments: Tensor, dtype: str, repeats: int) -> float:
    """Milliseconds of tree attention by parts, 9 heads of 64."""
    shape = (1, 9, segments.shape[1], 64)
    query, key, value = inputs = [torch.randn(shape, dtype=getattr(torch, dtype), requires_grad=True) for _ in range(3)]
    compact = segments[:, None, None]  # one tensor for all calls: its layout is computed once
    return milliseconds(functools.partial(tree_attention, query, key, value, compact, 0.1), inputs, repeats)


def milliseconds(run: Callable[[], Tensor], inputs: list[Tensor], repeats: int) -> float:
    """Forward and backward, the least of some calls."""
    return 1000 * timed(lambda: torch.autograd.grad(run().sum(), inputs), "cpu", repeats)[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=8)
    parser.add_argument("--matmul_precision", choices=("highest", "high", "medium"), default="highest")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.set_float32_matmul_precision(arguments.matmul_precision)
    print("| rows × (prefix + K × branch), heads × size | dense mask, ms | parts, ms | ratio | saved scores |")
    print("|---|---|---|---|---|")
    shapes = [(8, 40, 4, 30, 4, 32), (8, 40, 4, 60, 4, 32), (4, 100, 8, 60, 4, 32), (1, 100, 4, 60, 8, 64)]
    shapes += [(2, 200, 4, 100, 8, 64), (1, 600, 2, 100, 12, 64), (1, 600, 8, 137, 12, 64), (1, 600, 20, 137, 12, 64)]
    for rows, prefix, branches, tokens, heads, size in shapes:
        segments = segments_of(rows, prefix, branches, tokens)
        shape, dtype = (rows, heads, segments.shape[1], size), getattr(torch, arguments.dtype)
        query, key, value = inputs = [torch.randn(shape, dtype=dtype, requires_grad=True) for _ in range(3)]
        mask, compact = tree_mask(segments % STRIDE), segments[:, None, None]
        one_mask = functools.partial(F.scaled_dot_product_attention, query, key, value, attn_mask=mask)
        by_parts = functools.partial(tree_attention, query, key, value, compact, 0.1)
        dense = milliseconds(one_mask, inputs, arguments.repeats)
        parts = milliseconds(by_parts, inputs, arguments.repeats)
        length, tail = prefix + branches * tokens, branches * tokens
        saved = length**2 - prefix**2 - tail * (prefix + tokens)
        print(
            f"| {rows} × ({prefix} + {branches} × {tokens}), {heads} × {size} | {dense:.1f} | {parts:.1f} "
            f"| {dense / parts:.2f} | {rows * saved:,} |"
        )
    print("\n| prefix + branches of each tree | grouped by length, ms | padded to the longest, ms | ratio |")
    print("|---|---|---|---|")
    for trees in (
        [(80, 2, 120, 140, 160), (70, 2, 90, 100, 110)],  # mR²AG on pocket's gallery: a gate and passages
        [(70, 40), (700, 12), (60, 20), (500, 12)],  # plain fine-tuning: visual questions beside read ones
        [(70, 2, 40, 50, 60, 1500)],  # one long passage
    ):
        segments = packed(trees)
        grouped = time_by_parts(segments, arguments.dtype, arguments.repeats)
        with patch.object(attention, "like_lengths", all_together):
            padded = time_by_parts(segments, arguments.dtype, arguments.repeats)
        print(f"| {', '.join(map(str, trees))} | {grouped:.1f} | {padded:.1f} | {padded / grouped:.2f} |")


if __name__ == "__main__":
    main()

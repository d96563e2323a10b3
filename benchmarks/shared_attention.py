"""Attention of branches to a shared prefix: read where it stands and merged, against copied for each branch.

    python benchmarks/shared_attention.py

Prints, for branches of T tokens under prefixes of S, the milliseconds of both: up to which S copies are faster.
"""

from __future__ import annotations

import argparse
import functools

import torch
from running import timed

from reflectune.models.attention import shared as shared_attention
from reflectune.models.attention.shared import Shared, SharedContext


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--branches", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=12)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    print("| heads × size | branch | prefix | merged, ms | copied, ms | ratio |")
    print("|---|---|---|---|---|---|")
    for heads, key_heads, size in ((4, 4, 32), (12, 12, 64), (12, 4, 64)):
        for new in (30, 60, 120):
            for seen in (20, 40, 80, 128, 160, 320, 640):
                milliseconds = []
                for most in (0, seen):
                    shared_attention.COPIED = most
                    cache = [(torch.randn(1, key_heads, seen, size), torch.randn(1, key_heads, seen, size))]
                    row = torch.zeros(arguments.branches, dtype=torch.long)
                    sight = SharedContext([Shared.of(cache, torch.ones(1, seen, dtype=torch.bool), row)])
                    query = torch.randn(arguments.branches, heads, new, size)
                    key, value = (torch.randn(arguments.branches, key_heads, new, size) for _ in range(2))
                    given = (query, key, value, 0, size**-0.5)
                    seconds, _ = timed(functools.partial(sight.attend, *given), "cpu", arguments.repeats)
                    milliseconds.append(1000 * seconds)
                merged, copied = milliseconds
                print(
                    f"| {heads} × {size}, {key_heads} of keys | {new} | {seen} | {merged:.2f} | {copied:.2f} "
                    f"| {merged / copied:.2f} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()

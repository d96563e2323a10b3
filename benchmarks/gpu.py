"""What the toolkit gains on one GPU at the size of 7 B: the benchmarks that take `--device`, as one Markdown page.

    python benchmarks/gpu.py --output benchmarks/gpu.md                    # a GPU of 80 GB, about ten minutes
    python benchmarks/gpu.py --device cpu --size tiny --dtype float32      # anywhere, two minutes: do the commands run?

Each part is a process of its own, one after the other; what it printed stays in `--run`. One that fails or takes longer
than `--limit` seconds is named on the page, and the script ends with status 1.
"""

from __future__ import annotations

import argparse
import functools
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from page import command_line
from running import device_in_words, timed

from reflectune.core.durable import write_atomically
from reflectune.models.attention.attention import attend_plainly, kernels_of

FOLDER = Path(__file__).resolve().parent
PARTS: Mapping[str, tuple[str, dict[str, str]]] = {
    "exact": ("shared_prefix.py", {"--size": "small", "--dtype": "float32"}),
    "shared_prefix": ("shared_prefix.py", {}),
    "probe": ("probe.py", {}),
    "train_tree": ("train_tree.py", {}),
    "pipelines": ("pipelines.py", {"--questions": "4"}),
    "critic": ("critic.py", {}),
}
"""Benchmarks, each with options of its own, which go before the size and precision that are asked for."""
SHAPES = ((32, 32, 128), (28, 4, 128), (12, 12, 64))
"""Heads, key heads and size of LLaVA-1.5-7B, of Qwen2-VL-7B, and of the benchmarks' small models."""
ROWS, NEW, SEEN = 4, 120, 600
"""Prefixes of a picture and a question, and a passage after each, in tokens."""


def kernels(device: str) -> list[str]:
    """The rows of a table: each kernel that may read shared prefixes, how far it is from the equation, and its time."""
    rows = ["| kernel | heads (of keys) × size | dtype | farthest from the equation | ms |", "|---|---|---|--:|--:|"]
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        for heads, key_heads, size in SHAPES:
            case = f"{heads} ({key_heads}) × {size} | {str(dtype).removeprefix('torch.')}"
            for name, kernel in [*kernels_of(device, dtype), ("the equation's own products", attend_plainly)]:
                try:
                    far, seconds = _tried(kernel, device, dtype, (heads, key_heads, size))
                    rows.append(f"| {name} | {case} | {far:.0e} | {1000 * seconds:.3f} |")
                # as in `kernel_for`: this machine or this torch hasn't it, and the row says so
                except (RuntimeError, TypeError) as error:
                    rows.append(f"| {name} | {case} | refused: {str(error).splitlines()[0][:80]} | |")
    return rows


def _tried(
    kernel: Callable[..., Any], device: str, dtype: torch.dtype, shape: tuple[int, int, int]
) -> tuple[float, float]:
    """The largest difference of an output from float32's, and the least seconds of a call."""
    drawn, (heads, key_heads, size) = torch.Generator().manual_seed(0), shape
    query, keys, values = (
        torch.randn((ROWS, of, length, size), generator=drawn).to(device, dtype)
        for of, length in ((heads, NEW), (key_heads, SEEN), (key_heads, SEEN))
    )
    bias = torch.zeros(ROWS, 1, 1, SEEN, device=device, dtype=dtype)
    bias[1, :, :, SEEN // 2 :] = -torch.inf  # a shorter prefix
    exact, _ = attend_plainly(query.float(), keys.float(), values.float(), size**-0.5, bias, False)
    call = functools.partial(kernel, query, keys, values, size**-0.5, bias, False)
    output, _ = call()
    return float((output.float() - exact).abs().max()), timed(call, device, 20 if device == "cuda" else 1)[0]


def run_part(name: str, arguments: argparse.Namespace) -> str:
    """Run one benchmark, and return its page; a line that says how it failed in its place if it did."""
    script, own = PARTS[name]
    page, log = arguments.run / f"{name}.md", arguments.run / f"{name}.log"
    asked = {"--device": arguments.device, "--size": arguments.size, "--dtype": arguments.dtype}
    options = {**asked, **own, **({"--size": "tiny"} if arguments.size == "tiny" else {}), "--output": str(page)}
    command = [sys.executable, str(FOLDER / script), *(word for option in options.items() for word in option)]
    page.unlink(missing_ok=True)
    with log.open("w") as output:
        try:
            subprocess.run(command, stdout=output, stderr=subprocess.STDOUT, timeout=arguments.limit, check=True)
        except subprocess.TimeoutExpired:
            return f"# {name}\n\nFailed: not finished within {arguments.limit} seconds.\n"
        except subprocess.CalledProcessError:
            said = log.read_text().strip().splitlines() or ["it said nothing"]
            return f"# {name}\n\nFailed: {said[-1]}\n"
    return page.read_text()


def as_section(page: str) -> str:
    """A benchmark's page, a level lower and without its chart, which lies elsewhere."""
    lines = [line for line in page.splitlines() if not line.startswith("![")]
    return "\n".join(f"#{line}" if line.startswith("#") else line for line in lines).rstrip()


def main(words: Sequence[str] | None = None) -> None:
    """Run the parts, and print and write their page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="*", choices=PARTS, default=list(PARTS))
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--size", choices=("7b", "small", "tiny"), default="7b")
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    parser.add_argument("--limit", type=int, default=300, help="seconds of a part")
    parser.add_argument("--run", type=Path, default=Path("runs/gpu"), help="where each part's page and log lie")
    parser.add_argument("--output", type=Path, help="Markdown file; printed in any case")
    arguments = parser.parse_args(words)
    arguments.run.mkdir(parents=True, exist_ok=True)
    head = f"{command_line(__file__, words)}: {device_in_words(arguments.device)}. Random weights."
    sections = [f"# On one GPU\n\n{head}", "## Kernels", "\n".join(kernels(arguments.device))]
    print("\n\n".join(sections), flush=True)
    for name in arguments.parts:
        sections.append(as_section(run_part(name, arguments)))
        print(f"\n{sections[-1]}", flush=True)
    if arguments.output:
        write_atomically(arguments.output, "\n\n".join(sections) + "\n")
    sys.exit(min(1, sum("\nFailed: " in section for section in sections)))


if __name__ == "__main__":
    main()

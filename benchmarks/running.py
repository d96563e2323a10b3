"""What the benchmarks on models of a given size share: their command line, their clock, and their Markdown files."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from geometry import SIZES
from markupsafe import escape
from page import command_line


def parser(description: str | None, *, threads: int = 1) -> argparse.ArgumentParser:
    """The arguments that choose models, device and output file; a benchmark adds its own."""
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--families", nargs="+", default=["llava", "qwen2_vl"])
    made.add_argument("--size", choices=SIZES, default="small")
    made.add_argument("--device", default="cpu")
    made.add_argument("--dtype", default="float32")
    made.add_argument("--threads", type=int, default=threads)
    made.add_argument("--output", type=Path, help="Markdown file; printed in any case")
    return made


def timed(
    run: Callable[[], Any], device: str, repeats: int = 1, clock: Callable[[], float] = time.perf_counter
) -> tuple[float, Any]:
    """The least seconds of some calls, and what the last one returned; `time.process_time` counts the CPU's."""
    seconds, result = [], None
    for _ in range(repeats):
        wait(device)
        start = clock()
        result = run()
        wait(device)
        seconds.append(clock() - start)
    return min(seconds), result


def wait(device: str) -> None:
    """Until a GPU has done what it was given."""
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def device_in_words(device: str) -> str:
    """A device's name, and the version of torch, which its numbers hold for."""
    return f"{torch.cuda.get_device_name() if device.startswith('cuda') else 'a CPU'}, torch {torch.__version__}"


def write(arguments: argparse.Namespace, title: str, script: str, how: str, lines: Sequence[str]) -> None:
    """Write lines below a title and a sentence that says how they were measured, if a file was asked for."""
    if arguments.output:
        on_gpu = arguments.device.startswith("cuda")
        where = device_in_words(arguments.device) if on_gpu else f"{arguments.threads} CPU thread(s)"
        if "size" in arguments and not on_gpu:
            how += ". On a GPU: [gpu.md](gpu.md)"
        head = f"# {title}\n\n{command_line(script)}, {where}, {arguments.dtype}, {how}.\n\n"
        arguments.output.write_text(head + "\n".join(lines) + "\n", encoding="utf-8")


def alone(figure: str, names: Sequence[str], *, legend: tuple[int, int] = (70, 28)) -> str:
    """The SVG of a chart as a file of its own, with its colours, and its lines' names from the place `legend` down."""
    drawing = str(figure[figure.index("<svg") : figure.index("</svg>") + 6])
    drawing = drawing.replace("<svg", '<svg xmlns="http://www.w3.org/2000/svg"', 1)
    style = "text{font:11px sans-serif;fill:#444}.grid{stroke:#ddd}.line{fill:none;stroke-width:2}.dot{stroke-width:1}"
    style += "".join(
        f".line-{i}{{stroke:{c}}}.dot.line-{i},.name-{i}{{fill:{c}}}" for i, c in enumerate(_COLOURS[: len(names)])
    )
    told = "".join(
        f'<text class="name-{i}" x="{legend[0]}" y="{legend[1] + 16 * i}">{escape(name)}</text>'
        for i, name in enumerate(names)
    )
    head = drawing.index(">") + 1
    return f"{drawing[:head]}<style>{style}</style>{told}{drawing[head:]}"


_COLOURS = ("#2563eb", "#d97706", "#6b7280", "#1e3a8a", "#7c2d12", "#059669")

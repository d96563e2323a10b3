"""What pages of figures say alike: the command that made them, and a mean over seeds."""

from __future__ import annotations

import shlex
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

FOLDERS = ("--json", "--knowledge", "--output", "--run", "--runs", "--work")
"""Options that say where something lies, and change no figure."""
FLAGS = ("--collect",)
"""Options without a value that change no figure."""


def command_line(script: str, arguments: Sequence[str] | None = None) -> str:
    """The command line as the page names it: with every option that was given, but for folders.

    Args:
        script: The script's file name.
        arguments: What it was given; those of this process if None.
    """
    left = list(sys.argv[1:] if arguments is None else arguments)
    kept: list[str] = []
    while left:
        word = left.pop(0)
        if word in FOLDERS:
            del left[:1]
        elif word not in FLAGS and not word.startswith(tuple(f"{name}=" for name in FOLDERS)):
            kept.append(word)
    return f"`python benchmarks/{Path(script).name}{' ' if kept else ''}{shlex.join(kept)}`"


def page_file(name: str) -> Path:
    """The file of `--output`, meant from where the command was typed: a script may go to another folder later."""
    return Path(name).resolve()


def at(metrics: Mapping[str, Any], *path: str) -> Any:
    """What metrics.json, or another tree of dictionaries, has at the end of a path; None if it was not measured."""
    found: Any = metrics
    for name in path:
        found = (found or {}).get(name)
    return found


def spread(values: Sequence[float], digits: int = 1, scale: float = 1.0) -> str:
    """Mean ± standard deviation over seeds."""
    scaled = [scale * value for value in values]
    deviation = statistics.stdev(scaled) if len(scaled) > 1 else 0.0
    return f"{statistics.mean(scaled):.{digits}f} ± {deviation:.{digits}f}"

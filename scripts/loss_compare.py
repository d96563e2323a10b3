"""Compare the loss curves of two commits, as torchtitan's script of this name does.

    python scripts/loss_compare.py main HEAD --steps 200 --config configs/examples/miniature/sft.yaml
    python scripts/loss_compare.py main . --assert_equal --config …    # `.`: the working tree

Each commit is checked out into a temporary folder, and runs `reflectune sft` with this config and all further options.
Relative paths start in the current folder. With `--assert_equal` any difference is an error.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ROWS = 10
"""Steps that the table shows."""


def losses(log: Path) -> dict[int, float]:
    """Read the loss of each logged step from a run's `log.jsonl`."""
    rows = map(json.loads, log.read_text(encoding="utf-8").splitlines())
    return {row["step"]: row["loss"] for row in rows if "loss" in row}


def comparison(names: Sequence[str], curves: Sequence[dict[int, float]]) -> tuple[list[str], float]:
    """Return the lines of a table of two curves, and their largest difference."""
    first, second = curves
    if first.keys() != second.keys():
        return [f"{names[0]} logged {len(first)} steps, and {names[1]} {len(second)}"], float("inf")
    differences = {step: difference(first[step], second[step]) for step in first}
    largest = max(differences, key=differences.__getitem__)
    steps = sorted(first)
    shown = sorted({*steps[:: max(len(steps) // ROWS, 1)], steps[-1], largest})
    lines = [f"{'step':>6} {names[0]:>14} {names[1]:>14} {'difference':>12}"]
    lines += [f"{step:>6} {first[step]:>14.6f} {second[step]:>14.6f} {differences[step]:>12.2e}" for step in shown]
    lines.append(f"largest difference: {differences[largest]:.2e}, at step {largest} of {len(steps)}")
    return lines, differences[largest]


def difference(first: float, second: float) -> float:
    """Return the absolute difference of two losses: 0 for two NaNs, infinity for one."""
    if first == second or (math.isnan(first) and math.isnan(second)):
        return 0.0
    distance = abs(first - second)
    return math.inf if math.isnan(distance) else distance


def train(commit: str, folder: Path, steps: int, flags: Sequence[str]) -> dict[int, float]:
    """Train with a commit's sources, and return its losses; `.` stands for the working tree."""
    tree, output = (ROOT if commit == "." else folder / "tree"), folder / "output"
    if commit != ".":
        subprocess.run(
            ["git", "-C", str(ROOT), "worktree", "add", "--quiet", "--detach", str(tree), commit], check=True
        )
    try:
        command = [sys.executable, "-m", "reflectune", "sft", *flags, "--max_steps", str(steps), "--logging_steps", "1"]
        environment = {**os.environ, "PYTHONPATH": str(tree / "src")}
        subprocess.run([*command, "--output_dir", str(output)], check=True, env=environment)
    finally:
        if commit != ".":
            subprocess.run(["git", "-C", str(ROOT), "worktree", "remove", "--force", str(tree)], check=True)
    return losses(output / "log.jsonl")


def main() -> None:
    """Train with both commits, and print both curves."""
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=plain, allow_abbrev=False)
    parser.add_argument("commits", nargs=2, help="two commits, or `.`")
    parser.add_argument("--steps", type=int, default=200, help="optimiser steps of each training")
    parser.add_argument("--assert_equal", action="store_true", help="exit with status 1 unless all losses are equal")
    parser.add_argument("--config", required=True, help="config of `sft`; further options are passed to it")
    arguments, further = parser.parse_known_args()
    flags = ["--config", arguments.config, *further]
    curves = []
    for commit in arguments.commits:
        with tempfile.TemporaryDirectory() as folder:
            curves.append(train(commit, Path(folder), arguments.steps, flags))
    lines, largest = comparison(arguments.commits, curves)
    print("\n".join(lines))
    sys.exit(1 if arguments.assert_equal and largest else 0)


if __name__ == "__main__":
    main()

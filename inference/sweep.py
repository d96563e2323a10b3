"""Answer questions at every point of a grid of settings: `reflectune sweep --config …`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from reflectune.core.command import command
from reflectune.inference.sweeps.config import SweepConfig


@command(SweepConfig, writes="output")
def sweep(config: SweepConfig) -> None:
    """Answer questions at every point of a grid of settings, from one set of forward passes."""
    from reflectune.inference.sweeps.run import describe, run  # slow to import: after the config is right

    if config.dry_run:
        print(describe(config))
    elif record := run(config):
        print(summary(record))
        print(f"plots: {Path(config.output, 'sweep.html')}")


def summary(record: dict[str, Any]) -> str:
    """Return accuracy, retrieval rate and passages read of each point, and the number of forward passes."""
    width = max(len(point["name"]) for point in record["points"])
    lines = [f"{'point':{width}}  accuracy in %          retrieved  passages"]
    for point in record["points"]:
        score = point["accuracy"]
        cell = f"{100 * score['value']:5.1f} ({100 * score['low']:.1f} to {100 * score['high']:.1f})" if score else "–"
        lines.append(f"{point['name']:{width}}  {cell:22} {point['retrieval_rate']:9.3f} {point['passages_read']:9.1f}")
    if record["fitted_exponents"]:
        exponents = " ".join(map(str, record["fitted_exponents"]))
        lines.append(f"fitted exponents of S_ret, S_rel, S_ans: {exponents}; ask other questions with them")
    passes = record["forward_passes"]
    lines.append(f"forward passes: {passes['made']} made, {passes['saved']} saved of {passes['asked']} asked")
    return "\n".join(lines)

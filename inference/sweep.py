"""Answer questions at every point of a grid of settings: `reflectune sweep --config …`.

Exit status: 0, or 3 if questions failed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from reflectune.core.command import command
from reflectune.core.rejected import ROWS_LEFT_OUT
from reflectune.inference.sweeps.config import SweepConfig
from reflectune.metrics.reporting.breakdown import in_per_cent


@command(SweepConfig, writes="output")
def sweep(config: SweepConfig) -> int | None:
    """Evaluate a grid of settings, reusing forward passes between its points."""
    from reflectune.inference.sweeps.run import describe, run  # slow to import: after the config is right

    if config.dry_run:
        print(describe(config))
        return None
    if not (record := run(config)):
        return None
    print(summary(record))
    print(f"plots: {Path(config.output, 'sweep.html')}")
    return ROWS_LEFT_OUT if record["failed"] else None


def summary(record: dict[str, Any]) -> str:
    """Return each point's accuracy, difference from the first, retrieval rate and passages, and the forward passes."""
    width = max(len(point["name"]) for point in record["points"])
    lines = [f"{'point':{width}}  {'accuracy in %':26} {'over start':25} retrieved  passages"]
    for point in record["points"]:
        cells = [in_per_cent(point[name]) for name in ("accuracy", "over_start")]
        rate, read = point["retrieval_rate"], point["passages_read"]
        reads = f"{rate:9.3f} {read:9.1f}" if rate is not None else f"{'–':>9} {'–':>9}"
        lines.append(f"{point['name']:{width}}  {cells[0]:26} {cells[1]:25} {reads}")
    if record["fitted_exponents"]:
        exponents = " ".join(map(str, record["fitted_exponents"]))
        lines.append("fitted: each question uses exponents of S_ret, S_rel, S_ans fitted on other entities;")
        lines.append(f"    fitted on all questions: {exponents}")
    if record["failed"]:
        lines.append(f"{record['failed']:,} of {record['questions']:,} questions failed and count as wrong")
    passes = record["forward_passes"]
    lines.append(f"forward passes: {passes['made']} made, {passes['saved']} saved of {passes['asked']} asked")
    return "\n".join(lines)


if __name__ == "__main__":
    sweep.main()

"""Answer questions at every point of a grid of settings: `python -m reflectune.inference.sweep --config …`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from reflectune.core.config import parse_config
from reflectune.core.errors import entry_point
from reflectune.core.outputs import hold
from reflectune.inference.sweeps.config import SweepConfig


@entry_point
def main() -> None:
    """Read the config, run all points over one set of forward passes, and print their scores."""
    config = parse_config(SweepConfig)
    hold(config.output, unless=config.dry_run)
    from reflectune.inference.sweeps.run import describe, run  # slow to import: after the config is right

    if config.dry_run:
        print(describe(config))
        return
    if record := run(config):
        print(summary(record))
        print(f"plots: {Path(config.output, 'sweep.html')}")


def summary(record: dict[str, Any]) -> str:
    """Accuracy, retrieval rate and passages read of each point, and what the points cost."""
    width = max(len(point["name"]) for point in record["points"])
    lines = [f"{'point':{width}}  accuracy in %          retrieved  passages"]
    for point in record["points"]:
        score = point["accuracy"]
        told = f"{100 * score['value']:5.1f} ({100 * score['low']:.1f} to {100 * score['high']:.1f})" if score else "–"
        lines.append(f"{point['name']:{width}}  {told:22} {point['retrieval_rate']:9.3f} {point['passages_read']:9.1f}")
    passes = record["forward_passes"]
    return "\n".join(
        [*lines, f"forward passes: {passes['made']} made, {passes['saved']} saved of {passes['asked']} asked"]
    )


if __name__ == "__main__":
    main()

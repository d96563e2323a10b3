"""Compare finished evaluations: `reflectune compare --evaluations DIR … --output DIR`."""

from __future__ import annotations

from pathlib import Path

from reflectune.core.command import command
from reflectune.inference.comparing.config import CompareConfig


@command(CompareConfig, writes="output")
def compare(config: CompareConfig) -> None:
    """Compare finished evaluations in one table of scores and costs."""
    from reflectune.core.durable import write_atomically, write_json  # slow to import: after the config is right
    from reflectune.inference.comparing.page import page, plot
    from reflectune.inference.comparing.table import compared, read_metrics
    from reflectune.inference.report.drawing import can_draw

    if config.dry_run:
        print(f"compare {', '.join(config.evaluations)} in {config.output}: compare.md, compare.svg, compare.json")
        return
    record = compared(read_metrics(config))
    write_json(Path(config.output, "compare.json"), record)
    if can_draw():
        write_atomically(Path(config.output, "compare.svg"), plot(record, config.cost))
    text = page(record)
    write_atomically(Path(config.output, "compare.md"), text)
    print(text)

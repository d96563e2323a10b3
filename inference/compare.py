"""Compare finished evaluations: `python -m reflectune.inference.compare --evaluations DIR … --output DIR`."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from reflectune.core.config import parse_config
from reflectune.core.durable import write_atomically, write_json
from reflectune.core.errors import entry_point
from reflectune.core.outputs import hold
from reflectune.inference.comparing.config import CompareConfig


@entry_point
def main() -> None:
    """Read the config, compare, and print the table."""
    config = parse_config(CompareConfig)
    hold(config.output, unless=config.dry_run)
    from reflectune.inference.comparing.page import page, plot  # slow to import: after the config is right
    from reflectune.inference.comparing.table import compared, read_metrics
    from reflectune.inference.report.drawing import can_draw

    if config.dry_run:
        print(f"compare {', '.join(config.evaluations)} in {config.output}: compare.md, compare.svg, compare.json")
        return
    record = compared(read_metrics(config))
    write_json(Path(config.output, "compare.json"), record)
    if can_draw():
        write_atomically(Path(config.output, "compare.svg"), plot(record, config.cost))
    text = page(record, shlex.join(["python", "-m", "reflectune.inference.compare", *sys.argv[1:]]))
    write_atomically(Path(config.output, "compare.md"), text)
    print(text)


if __name__ == "__main__":
    main()

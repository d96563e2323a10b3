"""Print a paper's ablation tables in miniature: `accelerate launch examples/miniature/papers_tables.py --config …`."""

from __future__ import annotations

from pathlib import Path

from reflectune.core.config import parse_config
from reflectune.core.errors import entry_point
from reflectune.core.outputs import hold
from reflectune.core.resumable import launch_state
from reflectune.examples.miniature.tables.config import TablesConfig


@entry_point
def main() -> None:
    """Read the config, build and answer what isn't finished, and print the tables."""
    config = parse_config(TablesConfig)
    hold(config.output, unless=config.dry_run)
    from reflectune.examples.miniature.tables.run import describe, run, show  # slow to import

    if config.dry_run:
        print(describe(config))
        return
    record = run(config)
    if launch_state().is_main_process:
        print(show(record))
        print(f"tables: {Path(config.output, 'tables.md')}")


if __name__ == "__main__":
    main()

"""Reproduce a paper step by step: `python -m reflectune.inference.reproduce --config …/steps.yaml --data DIR --status`.

`--status` says of each step whether it is done, stale, half done, next or blocked, and why; `--dry_run` prints the
commands; without either, what isn't done is run in order, up to the paper's tables. After a crash or an error the same
command goes on. All paths of all steps start from `--data`.
"""

from __future__ import annotations

from pathlib import Path

from reflectune.core.config import parse_config
from reflectune.core.durable import write_atomically
from reflectune.core.errors import entry_point
from reflectune.core.outputs import hold
from reflectune.inference.reproduction.config import ReproduceConfig


@entry_point
def main() -> None:
    """Read the list, then show how far it is, or run it."""
    config = parse_config(ReproduceConfig)
    hold(config.folder(), unless=config.status or config.dry_run)
    from reflectune.inference.reproduction import running, status, tables  # slow to import: after the config is right

    every, data = config.all_steps(), Path(config.data)
    steps = config.chosen_steps(every)
    if config.status:
        print(status.told(status.statuses(steps, data, every), f"{config.paper} in {data}"))
        return
    if config.dry_run:
        print("\n".join([f"cd {data.resolve()}", *(step.shown() for step in steps)]))
        return
    running.run(steps, every, data.resolve(), config.folder().resolve(), config.redo)
    page = tables.page(config.tables, every, data, pilot=config.changed().pilot)
    write_atomically(config.folder() / "tables.md", page)
    print(f"tables: {config.folder() / 'tables.md'}")


if __name__ == "__main__":
    main()

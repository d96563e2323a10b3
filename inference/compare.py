"""Set pipelines side by side over data sets and seeds: `python -m reflectune.inference.compare --config …`."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from reflectune.core.config import parse_config, read_config
from reflectune.core.errors import entry_point
from reflectune.core.outputs import hold
from reflectune.inference.comparing.config import CompareConfig
from reflectune.inference.running.config import EvaluateConfig


@entry_point
def main() -> None:
    """Read the config, run the evaluations that are not finished, and print the table."""
    config = parse_config(CompareConfig)
    evaluations = [
        read_config(EvaluateConfig, changes["config"], **{k: v for k, v in changes.items() if k != "config"})
        for changes in config.planned().values()
    ]
    hold(config.output, unless=config.dry_run)
    from reflectune.inference.comparing.run import describe, run  # slow to import: after the config is right

    if config.dry_run:
        print(describe(config, evaluations))
        return
    command = shlex.join(["python", "-m", "reflectune.inference.compare", *sys.argv[1:]])
    if run(config, evaluations, command):
        print(Path(config.output, "compare.md").read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()

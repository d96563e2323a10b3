"""Probe a target model: `accelerate launch data_builders/probe.py --config configs/….yaml [--dry_run]`, or `python -m`.

Asks a split's questions without any document and with each retrieved one, judges the answers by the data set's metric,
and keeps them; `derive_labels` makes MMKB-RAG's training data of them. Goes on where it stopped.
"""

from __future__ import annotations

from reflectune.core.config import parse_config
from reflectune.core.errors import entry_point
from reflectune.core.outputs import hold
from reflectune.data_builders.probing.config import ProbeConfig


@entry_point
def main() -> None:
    """Parse the config, then probe."""
    config = parse_config(ProbeConfig)
    hold(config.output, unless=config.dry_run)
    from reflectune.data_builders.probing.run import run  # slow to import: after the config is right

    run(config)


if __name__ == "__main__":
    main()

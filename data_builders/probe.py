"""Probe a target model: `accelerate launch data_builders/probe.py --config configs/….yaml [--dry_run]`, or `python -m`.

Asks a split's questions without any document and with each retrieved one, judges the answers by the data set's metric,
and keeps them; `derive_labels` makes MMKB-RAG's training data of them. Goes on where it stopped.
"""

from __future__ import annotations

from reflectune.core.command import command
from reflectune.data_builders.probing.config import ProbeConfig


@command(ProbeConfig, writes="output")
def probe(config: ProbeConfig) -> None:
    """Ask a model a split's questions, without and with each retrieved document."""
    from reflectune.data_builders.probing.run import run  # slow to import: after the config is right

    run(config)


if __name__ == "__main__":
    probe.main()

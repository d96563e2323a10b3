"""Probe a target model: `accelerate launch data_builders/probe.py --config …`, or `reflectune probe --config …`."""

from __future__ import annotations

from reflectune.core.command import command
from reflectune.data_builders.probing.config import ProbeConfig


@command(ProbeConfig, writes="output")
def probe(config: ProbeConfig) -> None:
    """Record a model's answers to questions, without and with each retrieved document."""
    from reflectune.data_builders.probing.run import run  # slow to import: after the config is right

    run(config)


if __name__ == "__main__":
    probe.main()

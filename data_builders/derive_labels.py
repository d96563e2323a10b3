"""Derive MMKB-RAG's training data from probes: `reflectune derive_labels --config …`."""

from __future__ import annotations

from reflectune.core.command import command
from reflectune.data_builders.mmkb.config import DeriveConfig


@command(DeriveConfig, writes="output")
def derive_labels(config: DeriveConfig) -> None:
    """Derive MMKB-RAG's training data from probes."""
    from reflectune.data_builders.mmkb.run import run  # slow to import: after the config is right

    print(run(config))


if __name__ == "__main__":
    derive_labels.main()

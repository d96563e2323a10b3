"""Derive training data: `reflectune derive_labels --config configs/….yaml`; no model is needed.

Makes MMKB-RAG's RET, SRT and MCT data of what `probe.py` kept, by a rule and thresholds of your choice: Parquet, a
manifest, statistics, a card, and a page for proof-reading.
"""

from __future__ import annotations

from reflectune.core.command import command
from reflectune.data_builders.mmkb.config import DeriveConfig


@command(DeriveConfig, writes="output")
def derive_labels(config: DeriveConfig) -> None:
    """Derive MMKB-RAG's training data from probes."""
    from reflectune.data_builders.mmkb.run import run

    print(run(config))

"""Derive training data: `python -m reflectune.data_builders.derive_labels --config configs/….yaml`; no model is needed.

Makes MMKB-RAG's RET, SRT and MCT data of what `probe.py` kept, by a rule and thresholds of your choice: Parquet, a
manifest, statistics, a card, and a page for proof-reading.
"""

from __future__ import annotations

from reflectune.core.config import parse_config
from reflectune.core.errors import entry_point
from reflectune.core.outputs import hold
from reflectune.data_builders.mmkb.config import DeriveConfig


@entry_point
def main() -> None:
    """Parse the config, then derive."""
    config = parse_config(DeriveConfig)
    hold(config.output)
    from reflectune.data_builders.mmkb.run import run

    print(run(config))


if __name__ == "__main__":
    main()

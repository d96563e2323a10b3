"""Build the baselines' training data: `reflectune build_plain --config …`."""

from __future__ import annotations

from reflectune.core.command import command
from reflectune.data_builders.mr2ag.plain_config import PlainConfig


@command(PlainConfig, writes="output")
def build_plain(config: PlainConfig) -> None:
    """Build training data without reflection tokens, for the papers' baselines."""
    from reflectune.data_builders.mr2ag.plain import run  # slow to import: after the config is right

    run(config)


if __name__ == "__main__":
    build_plain.main()

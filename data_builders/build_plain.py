"""Build the baselines' training data: `python -m reflectune.data_builders.build_plain --config configs/….yaml`.

The same questions as mR²AG-IT's, without reflection: each is to be answered from what naive RAG would read of what is
retrieved for it, or from nothing (scheme `plain`). Goes on where it stopped.
"""

from __future__ import annotations

from reflectune.core.config import parse_config
from reflectune.core.errors import entry_point
from reflectune.core.outputs import hold
from reflectune.data_builders.plain.config import PlainConfig


@entry_point
def main() -> None:
    """Parse the config, then build."""
    config = parse_config(PlainConfig)
    hold(config.output, unless=config.dry_run)
    from reflectune.data_builders.plain.build import run  # slow to import: after the config is right

    run(config)


if __name__ == "__main__":
    main()

"""Build mR²AG-IT training data: `python -m reflectune.data_builders.build_mr2ag --config configs/….yaml [--dry_run]`.

Hangs passages from each knowledge-based question of a split (evidence, told by an annotator; other paragraphs of the
article, look-alikes from the index, random ones), adds visual-dependent questions, and writes Parquet, statistics and a
page for proof-reading. Goes on where it stopped.
"""

from __future__ import annotations

from reflectune.core.config import parse_config
from reflectune.core.errors import entry_point
from reflectune.core.outputs import hold
from reflectune.data_builders.mr2ag.config import BuildConfig


@entry_point
def main() -> None:
    """Parse the config, then build."""
    config = parse_config(BuildConfig)
    hold(config.output, unless=config.dry_run)
    from reflectune.data_builders.mr2ag.run import run  # slow to import: after the config is right

    run(config)


if __name__ == "__main__":
    main()

"""Build mR²AG-IT training data: `reflectune build_mr2ag --config configs/….yaml [--dry_run]`.

Hangs passages from each knowledge-based question of a split (evidence, told by an annotator; other paragraphs of the
article, look-alikes from the index, random ones), adds visual-dependent questions, and writes Parquet, statistics and a
page for proof-reading. Goes on where it stopped.
"""

from __future__ import annotations

from reflectune.core.command import command
from reflectune.data_builders.mr2ag.config import BuildConfig


@command(BuildConfig, writes="output")
def build_mr2ag(config: BuildConfig) -> None:
    """Build mR²AG-IT: questions with evidence passages and distractors."""
    from reflectune.data_builders.mr2ag.run import run  # slow to import: after the config is right

    run(config)

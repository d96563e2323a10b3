"""Build mR²AG-IT training data: `reflectune build_mr2ag --config …`."""

from __future__ import annotations

from reflectune.core.command import command
from reflectune.data_builders.mr2ag.config import BuildConfig


@command(BuildConfig, writes="output")
def build_mr2ag(config: BuildConfig) -> None:
    """Build mR²AG-IT: questions with evidence passages and distractors."""
    from reflectune.data_builders.mr2ag.run import run  # slow to import: after the config is right

    run(config)


if __name__ == "__main__":
    build_mr2ag.main()

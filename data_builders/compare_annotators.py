"""Compare annotators: `python -m reflectune.data_builders.compare_annotators --config configs/….yaml`.

Every paragraph of the articles of some questions is labelled by each annotator. Prints how far they agree, and, where
the data set names evidence sections, their precision and recall against these; writes the labels.
"""

from __future__ import annotations

from reflectune.core.config import parse_config
from reflectune.core.errors import entry_point
from reflectune.core.outputs import hold
from reflectune.data_builders.agreement.config import CompareConfig


@entry_point
def main() -> None:
    """Parse the config, then compare."""
    (config,) = parse_config(CompareConfig)
    hold(config.output, unless=config.dry_run)
    from reflectune.data_builders.agreement.run import run  # slow to import: after the config is right

    run(config)


if __name__ == "__main__":
    main()

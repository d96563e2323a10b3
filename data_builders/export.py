"""Data for other tools: `python -m reflectune.data_builders.export --data D --to TOOL --output O`.

TOOL is trl, llamafactory, ms-swift or llava. Writes a split of reflection data (mR²AG's or MMKB-RAG's) as
conversations, one per branch, with the tokens to add and a README that has the tool's command line. Exit status: 0, or
3 if rows were left out (`--on_error skip`).
"""

from __future__ import annotations

import sys

from reflectune.core.config import parse_config
from reflectune.core.errors import entry_point
from reflectune.core.outputs import hold
from reflectune.core.rejected import ROWS_LEFT_OUT
from reflectune.data_builders.exporting.config import ExportConfig


@entry_point
def main() -> None:
    """Parse the config, then export."""
    config = parse_config(ExportConfig)
    hold(config.output, unless=config.dry_run)
    from reflectune.data_builders.exporting.run import describe, export  # slow to import: after the config is right

    summary = export(config)
    print(describe(config, summary))
    if summary.bad:
        sys.exit(ROWS_LEFT_OUT)


if __name__ == "__main__":
    main()

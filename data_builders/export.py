"""Data for other tools: `python -m reflectune.data_builders.export --data D --to TOOL --output O`.

TOOL is trl, llamafactory, ms-swift or llava. Writes a split of reflection data (mR²AG's or MMKB-RAG's) as
conversations, one per branch, with the tokens to add and a README that has the tool's command line. `--from trl` reads
TRL's chat data back as reflection data. Exit status: 0, or 3 if rows were left out (`--on_error skip`).
"""

from __future__ import annotations

import sys

from reflectune.core.config import parse_config
from reflectune.core.errors import entry_point
from reflectune.core.outputs import hold
from reflectune.data_builders.exporting.config import ExportConfig

ROWS_LEFT_OUT = 3


@entry_point
def main() -> None:
    """Parse the config, then export or import."""
    (config,) = parse_config(ExportConfig, argv=[_spelt_out(argument) for argument in sys.argv[1:]])
    hold(config.output, unless=config.dry_run)
    from reflectune.data_builders.exporting.from_trl import import_trl  # slow to import: after the config is right
    from reflectune.data_builders.exporting.run import describe, export

    summary = export(config) if config.to else import_trl(config)
    print(describe(config, summary))
    if summary.bad:
        sys.exit(ROWS_LEFT_OUT)


def _spelt_out(argument: str) -> str:
    """`--from` as the config's field is called: a field can't be a word of Python's."""
    name, equals, value = argument.partition("=")
    return f"--from_format{equals}{value}" if name == "--from" else argument


if __name__ == "__main__":
    main()

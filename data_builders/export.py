"""Data for other tools: `reflectune export --data D --to TOOL --output O`.

TOOL is trl, llamafactory, ms-swift or llava. Writes a split of reflection data (mR²AG's or MMKB-RAG's) as
conversations, one per branch, with the tokens to add and a README that has the tool's command line. Exit status: 0, or
3 if rows were left out (`--on_error skip`).
"""

from __future__ import annotations

from reflectune.core.command import command
from reflectune.core.rejected import ROWS_LEFT_OUT
from reflectune.data_builders.exporting.config import ExportConfig


@command(ExportConfig, writes="output")
def export(config: ExportConfig) -> int | None:
    """Write reflection data in the layout of TRL, LLaMA-Factory, ms-swift or LLaVA."""
    from reflectune.data_builders.exporting.run import describe, export  # slow to import: after the config is right

    summary = export(config)
    print(describe(config, summary))
    if summary.bad:
        return ROWS_LEFT_OUT
    return None

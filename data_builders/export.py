"""Export reflection data for other tools: `reflectune export --data D --to TOOL --output O`.

Exit status: 0, or 3 if rows were left out (`on_error: skip`).
"""

from __future__ import annotations

from reflectune.core.command import command
from reflectune.core.rejected import ROWS_LEFT_OUT
from reflectune.data_builders.exporting.config import ExportConfig


@command(ExportConfig, writes="output")
def export(config: ExportConfig) -> int:
    """Write reflection data in the layout of TRL, LLaMA-Factory, ms-swift or LLaVA."""
    from reflectune.data_builders.exporting import run  # slow to import: after the config is right

    summary = run.export(config)
    print(run.describe(config, summary))
    return ROWS_LEFT_OUT if summary.bad else 0

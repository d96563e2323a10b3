"""Export a checkpoint for a server, or reflection data for a different trainer.

    reflectune export --checkpoint runs/quickstart/checkpoint --to vllm --output O
    reflectune export --data runs/quickstart/reflection --to trl --output O

Exit status: 0, or 3 if rows of the data were left out (`on_error: skip`).
"""

from __future__ import annotations

from reflectune.core.command import command
from reflectune.core.rejected import ROWS_LEFT_OUT
from reflectune.train.settings.export import ExportConfig


@command(ExportConfig, writes="output")
def export(config: ExportConfig) -> int:
    """Write a checkpoint for vLLM or SGLang, or reflection data for other trainers."""
    if config.checkpoint:
        from reflectune.train.weights.exporting import export_checkpoint  # slow to import

        print(export_checkpoint(config))
        return 0
    from reflectune.data_builders.exporting import run  # slow to import: after the config is right

    summary = run.export(config)
    print(run.describe(config, summary))
    return ROWS_LEFT_OUT if summary.bad else 0


if __name__ == "__main__":
    export.main()

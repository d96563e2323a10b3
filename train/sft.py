"""Fine-tune a model to reflect: `accelerate launch train/sft.py --config configs/….yaml [--key value …] [--dry_run]`.

The same command resumes an interrupted run.
"""

from __future__ import annotations

from reflectune.core.command import command
from reflectune.train.settings.sft import SftConfig


@command(SftConfig, writes="output_dir")
def sft(config: SftConfig) -> None:
    """Fine-tune a model on reflection data: fully, by LoRA or by QLoRA."""
    from reflectune.train.runs.supervised import fine_tune  # slow to import: after the config is right

    fine_tune(config)


if __name__ == "__main__":
    sft.main()

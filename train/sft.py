"""Fine-tune a model to reflect: `accelerate launch train/sft.py --config configs/….yaml [--key value …] [--dry_run]`.

Also `python -m reflectune.train.sft` and `python train/sft.py`, from any folder. A run that was cut off goes on from
its last checkpoint when the same command is given again.
"""

from __future__ import annotations

from reflectune.core.config import parse_config
from reflectune.core.errors import entry_point
from reflectune.core.outputs import hold
from reflectune.train.settings.sft import SftConfig


@entry_point
def main() -> None:
    """Parse the config, then train."""
    config = parse_config(SftConfig)
    hold(config.output_dir, unless=config.dry_run)
    from reflectune.train.runs.supervised import fine_tune  # slow to import: after the config is right

    fine_tune(config)


if __name__ == "__main__":
    main()

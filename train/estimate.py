"""What a recipe takes on each device, without its weights or data:

    python -m reflectune.train.estimate --config configs/llava15_7b/mr2ag_full.yaml --processes 8 --sharding zero3 \
        --device_gib 80

A model's shapes come from `architecture.json` beside the recipe, or, if `model` is a folder, from its `config.json`.
"""

from __future__ import annotations

import sys
from pathlib import Path

from reflectune.core.config import parse_config, split_config
from reflectune.core.errors import UserError, entry_point
from reflectune.train.forecasting.config import ARCHITECTURE, EstimateConfig


@entry_point
def main() -> None:
    """Parse the config, then print the table."""
    (config,) = parse_config(EstimateConfig)
    from reflectune.train.forecasting.planning import plan, report  # slow to import: after the config is right

    print(report(config, plan(config, shapes_file(config, sys.argv))))


def shapes_file(config: EstimateConfig, arguments: list[str]) -> Path:
    """The file with the model's shapes: the model's own, or the recipe's.

    Raises:
        UserError: There is neither.
    """
    model_config = Path(config.model, "config.json")
    recipe, _, _ = split_config(arguments)
    beside = recipe.with_name(ARCHITECTURE) if recipe else model_config
    for path in (model_config, beside):
        if path.is_file():
            return path
    raise UserError(
        f"the shapes of {config.model} are not known: `model` is no folder with a config.json, and there is no "
        f"{beside}; estimate a recipe of configs/, or download the model"
    )


if __name__ == "__main__":
    main()

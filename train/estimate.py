"""Estimate the memory of a recipe on each device, without its weights or data:

    python -m reflectune.train.estimate --config configs/llava15_7b/mr2ag_full.yaml --processes 8 --sharding zero3 \
        --device_gib 80

A model's shapes come from its `config.json`, in its folder or from the Hub; those of the recipe's own model also from
`architecture.json` next to the recipe. `train/sft.py --dry_run` measures the time of a step.
"""

from __future__ import annotations

import sys
from pathlib import Path

from reflectune.core.config import parse_config
from reflectune.core.errors import UserError, entry_point
from reflectune.core.flags import split_config
from reflectune.core.parsing import read_yaml
from reflectune.train.settings.estimate import ARCHITECTURE, EstimateConfig


@entry_point
def main() -> None:
    """Parse the config, then print the table."""
    config = parse_config(EstimateConfig)
    from reflectune.train.estimates.from_shapes import forecast_from_shapes, report  # slow to import

    print(report(config, forecast_from_shapes(config, shapes_file(config, sys.argv))))


def shapes_file(config: EstimateConfig, arguments: list[str]) -> Path:
    """Return the file with the model's shapes: the model's own, or the recipe's if the recipe names this model.

    Raises:
        UserError: There is neither, or no such model.
    """
    models_file = Path(config.model, "config.json")
    if models_file.is_file():
        return models_file
    recipe, _, _ = split_config(arguments)
    if recipe is not None and _model_of(recipe) == config.model:
        recipes_file = recipe.with_name(ARCHITECTURE)
        if recipes_file.is_file():
            return recipes_file
    from reflectune.models import loading  # slow to import

    try:
        return loading.shapes_file(config.model)
    except UserError as error:
        is_recipes = recipe is not None and _model_of(recipe) == config.model
        also = f", and there is no {recipe.with_name(ARCHITECTURE)}" if recipe is not None and is_recipes else ""
        raise UserError(
            f"the shapes of {config.model} are not known: {error}{also}; estimate a recipe of configs/ with its own "
            "`model`, or download the model"
        ) from error


def _model_of(recipe: Path) -> str:
    """Return the model that a recipe names."""
    values = read_yaml(recipe)
    return str(values.get("model", "")) if isinstance(values, dict) else ""


if __name__ == "__main__":
    main()

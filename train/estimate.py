"""Estimate the memory of a recipe on each device, without its weights or data:

    reflectune estimate --config configs/llava15_7b/mr2ag_full.yaml --processes 8 --sharding zero3 --device_gib 80

A model's shapes come from its `config.json`, in its folder or from the Hub; those of the recipe's own model also from
`architecture.json` next to the recipe. `train/sft.py --dry_run` measures the time of a step.
"""

from __future__ import annotations

from pathlib import Path

from reflectune.core.command import command
from reflectune.core.errors import UserError
from reflectune.core.parsing import read_yaml
from reflectune.train.settings.estimate import ARCHITECTURE, EstimateConfig


@command(EstimateConfig)
def estimate(config: EstimateConfig) -> None:
    """Estimate the memory of a training on each device."""
    from reflectune.train.estimates.from_shapes import forecast_from_shapes, report  # slow to import

    print(report(config, forecast_from_shapes(config, shapes_file(config))))


def shapes_file(config: EstimateConfig) -> Path:
    """Return the file with the model's shapes: the model's own, or the recipe's if the recipe names this model.

    Raises:
        UserError: There is neither, or no such model.
    """
    models_file = Path(config.model, "config.json")
    if models_file.is_file():
        return models_file
    recipe = config.config_file
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

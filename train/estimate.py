"""Estimate the memory of a recipe on each device, without its weights or data:

    reflectune estimate --config configs/recipes/mr2ag_full.yaml --processes 8 --sharding zero3 --device_gib 80

A model's shapes come from `configs/architectures`, or from the `config.json` in its folder or on the Hub.
`train/sft.py --dry_run` also measures the time of a step.
"""

from __future__ import annotations

import importlib.resources
from pathlib import Path

from reflectune.core.command import command
from reflectune.core.durable import read_json
from reflectune.train.settings.estimate import EstimateConfig


@command(EstimateConfig)
def estimate(config: EstimateConfig) -> None:
    """Estimate the memory of a training on each device."""
    from reflectune.train.estimates.from_shapes import forecast_from_shapes, report  # slow to import

    print(report(config, forecast_from_shapes(config, shapes_file(config))))


def shapes_file(config: EstimateConfig) -> Path:
    """Return the file with the model's shapes.

    Raises:
        UserError: The shapes are not known.
    """
    models_file = Path(config.model, "config.json")
    if models_file.is_file():
        return models_file
    shipped = Path(str(importlib.resources.files("reflectune.configs").joinpath("architectures")))
    for path in sorted(shipped.glob("*.json")):
        if read_json(path, "shapes of a model")["model"] == config.model:
            return path
    from reflectune.models import records  # slow to import

    return records.shapes_file(config.model)


if __name__ == "__main__":
    estimate.main()

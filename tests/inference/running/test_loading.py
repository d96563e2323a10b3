"""The base model and the checkpoint of a run see the same images."""

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from reflectune.core.errors import UserError
from reflectune.inference.config import ModelSettings
from reflectune.inference.running.loading import open_plain, open_tuned
from reflectune.models.loading import load
from reflectune.models.records import read_info, write_info
from reflectune.models.rendering.image_config import ImageSettings
from reflectune.models.rendering.image_fitting import fit_images

OTHERWISE: dict[str, tuple[ImageSettings, dict[str, Any]]] = {
    "llava": (ImageSettings("pad"), {"image_fit": "pad"}),
    "qwen2_vl": (ImageSettings(max_pixels=8192), {"max_pixels": 8192}),
}
"""Of each family: what a checkpoint may have been trained with, and the keys that say so."""


@pytest.fixture
def checkpoint(checkpoints: SimpleNamespace, family: str, tmp_path: Path) -> str:
    """The tuned checkpoint, as if it had been trained on images that were fitted otherwise than the base's."""
    folder = shutil.copytree(checkpoints.tuned, tmp_path / "tuned")
    processor = load(str(folder)).processor
    fit_images(processor, family, OTHERWISE[family][0])
    processor.save_pretrained(folder)
    write_info(folder, read_info(folder))
    return str(folder)


def test_a_base_model_that_would_see_other_images_than_the_checkpoint_is_refused(checkpoint, checkpoints) -> None:
    config = ModelSettings(model=checkpoint, base_model=checkpoints.base, device="cpu")
    open_tuned(config)
    with pytest.raises(UserError, match="give the first in the config, for both"):
        open_plain(config, config.base_model)


def test_the_keys_are_for_both(checkpoint: str, checkpoints: SimpleNamespace, family: str) -> None:
    keys = OTHERWISE[family][1]
    config = ModelSettings(model=checkpoint, base_model=checkpoints.base, device="cpu", **keys)
    tuned, base = open_tuned(config), open_plain(config, config.base_model)
    first, second = (loaded.processor.image_processor.to_dict() for loaded in (tuned, base))
    assert {**first, "image_processor_type": ""} == {**second, "image_processor_type": ""}
    with pytest.raises(UserError, match="was trained on images"):
        open_tuned(ModelSettings(model=checkpoints.tuned, device="cpu", **keys))

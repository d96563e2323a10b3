"""Load a served checkpoint without its weights: scheme, tokenizer, chat template and config."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForImageTextToText, GenerationConfig

from reflectune.core.durable import read_json
from reflectune.core.errors import UserError
from reflectune.core.hashing import fingerprint
from reflectune.core.weights import UNLOADABLE
from reflectune.models.loading import Loaded, checkpoint_scheme, is_released, set_image_fit
from reflectune.models.records import INFO_FILE, SAVED, read_info, resolve, shapes_file
from reflectune.models.rendering.image_config import AS_IN_PROCESSOR, ImageSettings
from reflectune.models.rendering.image_fitting import images_fingerprint
from reflectune.models.rendering.renderer import Renderer
from reflectune.models.schemes.registry import find_scheme
from reflectune.models.weights.pretrained import load_processor


def load_without_weights(
    model: str, server: str, *, scheme: str | None = None, images: ImageSettings = AS_IN_PROCESSOR
) -> Loaded:
    """Load a checkpoint without its weights.

    Args:
        model: See `load`.
        server: URL of the server, without its secrets.
        scheme: Scheme that a checkpoint must have, as for `load`; a base model gets no tokens.
        images: See `load`.

    Raises:
        UserError: See `load`.
    """
    requested, source = find_scheme(scheme) if scheme else None, resolve(model)
    tuned = checkpoint_scheme(source, requested) if isinstance(source, Path) else None
    shapes = shapes_file(model)
    try:
        config: Any = AutoConfig.from_pretrained(shapes, trust_remote_code=False)
        with torch.device("meta"):
            network: Any = AutoModelForImageTextToText.from_config(config)
        processor = load_processor(source, config.model_type)
    except UNLOADABLE as error:
        raise UserError(f"cannot read the model {model}: {' '.join(str(error).split())[:400]}") from error
    if (shapes.parent / "generation_config.json").is_file():
        network.generation_config = GenerationConfig.from_pretrained(shapes.parent)
    if tuned is None and requested is not None and is_released(network, processor, requested):
        tuned = requested
    set_image_fit(processor, network, images, model, is_tuned=tuned is not None)
    renderer = Renderer(tuned, processor)
    is_ours = isinstance(source, Path) and (source / INFO_FILE).is_file()
    weights = read_info(source).get(SAVED, "") if is_ours else read_json(shapes, "the model's shapes")
    parts = [server, model, weights, renderer.fingerprint, images_fingerprint(processor)]
    return Loaded(network.eval(), processor, tuned, renderer, model, fingerprint(parts), tuned is not None)

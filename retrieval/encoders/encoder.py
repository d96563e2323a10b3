"""Encoders of images and texts, loaded by name.

CLIP, SigLIP and their like, EVA-CLIP, multimodal language models, two models and a map between them, or two without.
"""

from __future__ import annotations

from reflectune.core.devices import find_device
from reflectune.models.names import MIXTURE, find_collection, pair_of
from reflectune.models.weights.pretrained import as_dtype
from reflectune.retrieval.encoders.base import ImageTextEncoder
from reflectune.retrieval.encoders.checkpoints import find_checkpoint
from reflectune.retrieval.encoders.clip import ClipEncoder, ImageTower
from reflectune.retrieval.encoders.decoupled import MixtureEncoder, SideBySideEncoder
from reflectune.retrieval.encoders.eva_clip import EvaClipEncoder, is_eva_clip
from reflectune.retrieval.encoders.lvlm import LvlmEncoder, embedder_of


def load_encoder(name: str, *, device: str = "cpu", dtype: str = "float32") -> ImageTextEncoder:
    """Load an encoder.

    Args:
        name: A folder, a hub id, e.g. `openai/clip-vit-large-patch14`, or `owner/name@COMMIT`, which weights in pickles
            need; a shipped model, e.g. `miniature/clip`; `gme:MODEL` or `vlm2vec:MODEL`, a multimodal language model
            that was trained to embed; `pair:IMAGE+TEXT`, an image tower and a text encoder; `mixture:IMAGE+TEXT`, the
            same with entries' images mixed with their texts.
        device: `cpu`, `cuda`, …; `auto` uses an accelerator if there is one.
        dtype: Precision of the weights: `float32`, `bfloat16` or `float16`. Vectors of different precisions don't mix.

    Raises:
        UserError: Encoder, device or dtype is missing; its files are damaged or unsafe; or it lacks images or texts.
    """
    place, precision = find_device(device), as_dtype(dtype)
    if (pair := pair_of(name)) is not None:
        image, text = pair
        if name.startswith(f"{MIXTURE}:"):
            return MixtureEncoder(name, ClipEncoder(find_checkpoint(image), place, precision), text, place)
        return SideBySideEncoder(name, ImageTower(find_checkpoint(image), place, precision), text, place)
    if (embedder := embedder_of(name)) is not None:
        return LvlmEncoder(name, *embedder, place, precision)
    collection = find_collection(name)
    if collection is not None and (encoder := collection.encoder(name, place, precision)) is not None:
        return encoder
    checkpoint = find_checkpoint(name)
    if is_eva_clip(checkpoint):
        return EvaClipEncoder(checkpoint, place, precision)
    return ClipEncoder(checkpoint, place, precision)

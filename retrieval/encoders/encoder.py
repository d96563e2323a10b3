"""Load an encoder of images and texts by its name.

CLIP, SigLIP and similar models, EVA-CLIP, multimodal LLMs, or an image tower with a text encoder, with or without a map
from the images' space to the texts'.
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
        name: A folder, a hub id, e.g. `openai/clip-vit-large-patch14`, or `owner/name@COMMIT`, which pickled weights
            need; a shipped model, e.g. `miniature/clip`; `gme:MODEL` or `vlm2vec:MODEL`, a multimodal LLM trained to
            embed; `pair:IMAGE+TEXT`, an image tower and a text encoder; `mixture:IMAGE+TEXT`, the same with entries'
            images mixed with their texts.
        device: `cpu`, `cuda`, …; `auto` uses an accelerator if there is one.
        dtype: Precision of the weights: `float32`, `bfloat16` or `float16`. Vectors of different precisions are not
            comparable.

    Raises:
        UserError: The encoder, device or dtype doesn't exist; files are damaged or unsafe; or the model doesn't encode
            both images and texts.
    """
    torch_device, precision = find_device(device), as_dtype(dtype)
    if (pair := pair_of(name)) is not None:
        image, text = pair
        if name.startswith(f"{MIXTURE}:"):
            return MixtureEncoder(
                name, ClipEncoder(find_checkpoint(image), torch_device, precision), text, torch_device
            )
        return SideBySideEncoder(name, ImageTower(find_checkpoint(image), torch_device, precision), text, torch_device)
    if (embedder := embedder_of(name)) is not None:
        return LvlmEncoder(name, *embedder, torch_device, precision)
    collection = find_collection(name)
    if collection is not None and (encoder := collection.encoder(name, torch_device, precision)) is not None:
        return encoder
    checkpoint = find_checkpoint(name)
    if is_eva_clip(checkpoint):
        return EvaClipEncoder(checkpoint, torch_device, precision)
    return ClipEncoder(checkpoint, torch_device, precision)

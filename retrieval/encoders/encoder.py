"""Encoders of images and texts, loaded by name.

CLIP, SigLIP and their like, EVA-CLIP, multimodal language models, two models and a map between them, or two without.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from reflectune.core.devices import find_device
from reflectune.core.errors import UserError
from reflectune.core.hashing import fingerprint
from reflectune.models.names import MIXTURE, find_collection, pair_of
from reflectune.models.weights.pretrained import as_dtype
from reflectune.retrieval.encoders.base import (
    ImageModel,
    ImageTextEncoder,
    Prepared,
    Vectors,
    load_image_processor,
    no_vectors,
    projected,
    unit_rows,
    with_dtype,
)
from reflectune.retrieval.encoders.checkpoints import (
    Checkpoint,
    find_checkpoint,
    load_config,
    load_tokenizer,
    load_weights,
)
from reflectune.retrieval.encoders.decoupled import ImageTower, MixtureEncoder, SideBySideEncoder
from reflectune.retrieval.encoders.eva_clip import EvaClipEncoder, is_eva_clip
from reflectune.retrieval.encoders.lvlm import LvlmEncoder, embedder_of
from reflectune.retrieval.encoders.modules import refuse_dense
from reflectune.retrieval.encoders.texts import longer_than, max_positions

_SIGLIP = ("siglip", "siglip2")
"""Model types that were trained on texts in lower case, padded to full length, and read them differently otherwise."""


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
            return MixtureEncoder(name, _TransformersEncoder(find_checkpoint(image), place, precision), text, place)
        return SideBySideEncoder(name, ImageTower(find_checkpoint(image), place, precision), text, place)
    if (embedder := embedder_of(name)) is not None:
        return LvlmEncoder(name, *embedder, place, precision)
    collection = find_collection(name)
    if collection is not None and (encoder := collection.encoder(name, place, precision)) is not None:
        return encoder
    checkpoint = find_checkpoint(name)
    if is_eva_clip(checkpoint):
        return EvaClipEncoder(checkpoint, place, precision)
    return _TransformersEncoder(checkpoint, place, precision)


class _TransformersEncoder(ImageModel):
    """A transformers model with `get_image_features` and `get_text_features`."""

    def __init__(self, checkpoint: Checkpoint, device: torch.device, dtype: torch.dtype) -> None:
        from transformers import MODEL_MAPPING, AutoModel

        refuse_dense(checkpoint)
        self.revision, self.fingerprint = checkpoint.revision, with_dtype(checkpoint.fingerprint, dtype)
        config: Any = load_config(checkpoint)
        kind = MODEL_MAPPING.get(type(config), None)
        if not (hasattr(kind, "get_image_features") and hasattr(kind, "get_text_features")):
            raise UserError(
                f"{checkpoint.name} is a `{config.model_type}`, which does not encode images and texts into one space; "
                "give a model like CLIP or SigLIP"
            )
        self._model: Any = load_weights(checkpoint, AutoModel, dtype=dtype, device=device)
        self._tokenizer = load_tokenizer(checkpoint)
        super().__init__(checkpoint.name, load_image_processor(checkpoint), device, dtype)
        positions = max_positions(self._model, config.text_config)
        self.longest = min(self._tokenizer.model_max_length, positions or self._tokenizer.model_max_length)
        is_siglip = config.model_type in _SIGLIP
        self._padding = "max_length" if is_siglip else "longest"
        # SigLIP2's repositories name Gemma's tokenizer, which keeps capitals. Can go once they name Siglip2Tokenizer:
        # https://huggingface.co/google/siglip2-base-patch16-224/discussions/22
        self._lowers = is_siglip and bool(self._tokenizer("A")["input_ids"] != self._tokenizer("a")["input_ids"])
        if self._lowers:
            self.fingerprint = fingerprint([self.fingerprint, "lower case"])
        self.dimensions = self.encode_texts([self.name]).shape[1]

    def features(self, inputs: Prepared) -> torch.Tensor:
        """Return the projected vectors of images, shape (n, dimensions)."""
        return projected(self._model.get_image_features(**inputs))

    def encode_texts(self, texts: Sequence[str]) -> Vectors:
        """Return vectors of length 1, shape (n, dimensions); a text too long for the model is cut."""
        if not texts:
            return no_vectors(self.dimensions)
        inputs = self._tokenizer(
            [text.lower() if self._lowers else text for text in texts],
            padding=self._padding,
            truncation=True,
            max_length=self.longest,
            return_tensors="pt",
        )
        inputs.pop("token_type_ids", None)
        with torch.inference_mode():
            return unit_rows(projected(self._model.get_text_features(**inputs.to(self._model.device))), self.name)

    def too_long(self, texts: Sequence[str]) -> list[bool]:
        """Return True for each text that is longer than the model reads."""
        return longer_than(self.longest, self._tokenizer, [text.lower() if self._lowers else text for text in texts])

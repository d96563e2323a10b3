"""Encoders of images and texts, loaded by name: CLIP, SigLIP and their like, or two models and a map between them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image

from reflectune.core.devices import find_device
from reflectune.core.errors import UserError
from reflectune.core.hashing import file_fingerprint, fingerprint
from reflectune.core.images import to_rgb
from reflectune.core.weights import UNLOADABLE
from reflectune.models.weights.pretrained import try_image_processor
from reflectune.retrieval.encoders.checkpoints import (
    Checkpoint,
    find_checkpoint,
    load_config,
    load_tokenizer,
    load_weights,
)
from reflectune.retrieval.encoders.texts import TextModel, declared_pooling
from reflectune.retrieval.encoders.title_map import TitleMap, read_title_map, title_map_file

Vectors = npt.NDArray[np.float32]

_PADDED_WHOLE = ("siglip", "siglip2")
"""Model types that were trained on texts padded to full length and read them differently otherwise."""


class ImageTextEncoder(Protocol):
    """Turns images and texts into vectors whose inner product is their cosine similarity.

    Attributes:
        name: As it was asked for.
        revision: The commit of the hub that its files are of; "" for a folder.
        dimensions: Length of a vector.
        fingerprint: A hash of its files; vectors of encoders that differ in it must not be compared.
    """

    name: str
    revision: str
    dimensions: int
    fingerprint: str

    def encode_images(self, images: Sequence[Image.Image]) -> Vectors:
        """Vectors of length 1, shape (n, dimensions)."""
        ...

    def encode_texts(self, texts: Sequence[str]) -> Vectors:
        """Vectors of length 1, shape (n, dimensions); a text too long for the model is cut."""
        ...


@runtime_checkable
class TwoSpaceEncoder(ImageTextEncoder, Protocol):
    """An encoder whose texts lie in another space than its images, with a map from the one to the other.

    Attributes:
        dimensions: Length of an image's vector.
        title_dimensions: Length of a text's vector.
    """

    title_dimensions: int

    def to_title_space(self, images: Vectors) -> Vectors:
        """Vectors of images, shape (n, dimensions), as those of texts: of length 1, shape (n, title_dimensions)."""
        ...


def title_dimensions(encoder: ImageTextEncoder) -> int:
    """Length of a text's vector."""
    return encoder.title_dimensions if isinstance(encoder, TwoSpaceEncoder) else encoder.dimensions


def load_encoder(name: str, *, device: str = "cpu") -> ImageTextEncoder:
    """Load an encoder.

    Args:
        name: `miniature/clip`, a folder, or a hub id, e.g. `openai/clip-vit-large-patch14`, perhaps with a commit
            (`owner/name@COMMIT`), which weights that are not in safetensors format need; `catalogue.py` has some. Or
            `pocket/clip`, or a file of `fit_title_map`: an image tower, a text model and a map between them.
        device: `cpu`, `cuda`, …; `auto` takes an accelerator if there is one.

    Raises:
        UserError: There is no such encoder, its files are damaged, unsafe or of another model, it does not encode both
            images and texts, or there is no such device.
    """
    if (path := title_map_file(name)) is not None:
        return _MappedEncoder(name, path, find_device(device))
    checkpoint, place = find_checkpoint(name), find_device(device)
    return _TransformersEncoder(checkpoint, place)


class _TransformersEncoder:
    """A transformers model with `get_image_features` and `get_text_features`, in fp32, with PIL preprocessing.

    Preprocessing is PIL's wherever it runs: torchvision resizes a little differently, and vectors of an index and of
    a query must come from the same pixels.
    """

    def __init__(self, checkpoint: Checkpoint, device: torch.device) -> None:
        from transformers import MODEL_MAPPING, AutoModel

        self.name, self.revision, self.fingerprint = checkpoint.name, checkpoint.revision, checkpoint.fingerprint
        config: Any = load_config(checkpoint)
        kind = MODEL_MAPPING.get(type(config), None)
        if not (hasattr(kind, "get_image_features") and hasattr(kind, "get_text_features")):
            raise UserError(
                f"{self.name} is a `{config.model_type}`, which does not encode images and texts into one space; "
                "give a model like CLIP or SigLIP"
            )
        self._model: Any = load_weights(checkpoint, AutoModel, dtype=torch.float32, device=device)
        self._tokenizer, self._image_processor = load_tokenizer(checkpoint), _image_processor(checkpoint)
        self._longest = min(self._tokenizer.model_max_length, config.text_config.max_position_embeddings)
        self._padding = "max_length" if config.model_type in _PADDED_WHOLE else "longest"
        self.dimensions = self.encode_texts([self.name]).shape[1]

    def encode_images(self, images: Sequence[Image.Image]) -> Vectors:
        """Vectors of length 1, shape (n, dimensions)."""
        if not images:
            return np.zeros((0, self.dimensions), dtype=np.float32)
        inputs = self._image_processor(images=[to_rgb(image) for image in images], return_tensors="pt")
        with torch.inference_mode():
            return _unit(self._model.get_image_features(**inputs.to(self._model.device)), self.name)

    def encode_texts(self, texts: Sequence[str]) -> Vectors:
        """Vectors of length 1, shape (n, dimensions); a text too long for the model is cut."""
        if not texts:
            return np.zeros((0, self.dimensions), dtype=np.float32)
        inputs = self._tokenizer(
            list(texts), padding=self._padding, truncation=True, max_length=self._longest, return_tensors="pt"
        )
        inputs.pop("token_type_ids", None)
        with torch.inference_mode():
            return _unit(self._model.get_text_features(**inputs.to(self._model.device)), self.name)


class _MappedEncoder:
    """An image tower, a text model, and a map of the one's vectors into the other's space, all in fp32."""

    def __init__(self, name: str, path: Path, device: torch.device) -> None:
        self._map: TitleMap = read_title_map(path)
        self.name, self.revision = name, ""
        vision, text = (find_checkpoint(self._map.record[part]) for part in ("vision", "text"))
        self._vision, self._text = ImageTower(vision, device), TitleModel(text, device)
        self.dimensions, self.title_dimensions = self._vision.dimensions, self._text.dimensions
        if self._map.weight.shape != (self.dimensions, self.title_dimensions):
            raise UserError(
                f"{path} maps {self._map.weight.shape[0]} dimensions to {self._map.weight.shape[1]}, but {vision.name} "
                f"has {self.dimensions} and {text.name} {self.title_dimensions}; fit it again"
            )
        self.fingerprint = fingerprint(["title map", vision.fingerprint, text.fingerprint, file_fingerprint(path)])

    def encode_images(self, images: Sequence[Image.Image]) -> Vectors:
        """Vectors of length 1, shape (n, dimensions)."""
        return self._vision.encode(images)

    def encode_texts(self, texts: Sequence[str]) -> Vectors:
        """Vectors of length 1, shape (n, title_dimensions); a text too long for the model is cut."""
        return self._text.encode(texts)

    def to_title_space(self, images: Vectors) -> Vectors:
        """Vectors of images as those of texts, of length 1, shape (n, title_dimensions)."""
        return self._map.apply(images)


class ImageTower:
    """The image tower of a CLIP with its projection, in fp32, with PIL preprocessing.

    Raises:
        UserError: The checkpoint is of another kind of model.
    """

    def __init__(self, checkpoint: Checkpoint, device: torch.device) -> None:
        from transformers import CLIPVisionModelWithProjection

        config: Any = load_config(checkpoint)
        if config.model_type != "clip_vision_model":
            raise UserError(f"{checkpoint.name} is a `{config.model_type}`; a title map needs a `clip_vision_model`")
        self._model: Any = load_weights(checkpoint, CLIPVisionModelWithProjection, dtype=torch.float32, device=device)
        self._name, self._image_processor = checkpoint.name, _image_processor(checkpoint)
        self.dimensions = int(config.projection_dim)

    def encode(self, images: Sequence[Image.Image]) -> Vectors:
        """Vectors of length 1, shape (n, dimensions)."""
        if not images:
            return np.zeros((0, self.dimensions), dtype=np.float32)
        inputs = self._image_processor(images=[to_rgb(image) for image in images], return_tensors="pt")
        with torch.inference_mode():
            return _unit(self._model(**inputs.to(self._model.device)).image_embeds, self._name)


class TitleModel:
    """A text model that reads titles, in fp32, pooled as its repository declares."""

    def __init__(self, checkpoint: Checkpoint, device: torch.device) -> None:
        pooling = declared_pooling(checkpoint, "write it there as mean, last or cls")
        self._model = TextModel(checkpoint, device, pooling=pooling)
        self._name, self.dimensions = checkpoint.name, self._model.dimensions

    def encode(self, texts: Sequence[str]) -> Vectors:
        """Vectors of length 1, shape (n, dimensions); a text too long for the model is cut."""
        if not texts:
            return np.zeros((0, self.dimensions), dtype=np.float32)
        return _unit(self._model.encode(texts), self._name)


def _image_processor(checkpoint: Checkpoint) -> Any:
    from transformers import AutoImageProcessor

    try:
        processor = AutoImageProcessor.from_pretrained(checkpoint.folder, backend="pil", trust_remote_code=False)
        try_image_processor(processor)
    except UNLOADABLE as error:
        raise UserError(
            f"the image processor of {checkpoint.name} cannot be loaded from {checkpoint.folder}: {error}; check or "
            "replace its files"
        ) from error
    return processor


def _unit(output: Any, name: str) -> Vectors:
    """Rows of a model's output, scaled to length 1; `name` is the encoder's.

    Raises:
        UserError: One is zero, or no number: it would be equally near to everything.
    """
    rows = output if isinstance(output, torch.Tensor) else output.pooler_output
    lengths = rows.float().norm(dim=-1, keepdim=True)
    if not bool((lengths.isfinite() & (lengths > 0)).all()):
        raise UserError(
            f"the encoder {name} computes vectors that are zero or no numbers: replace its weights, which are damaged"
        )
    return (rows.float() / lengths).cpu().numpy()

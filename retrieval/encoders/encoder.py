"""Encoders that put images and texts into one space: CLIP, SigLIP and their like, loaded by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image

from reflectune.core.devices import find_device
from reflectune.core.errors import UserError
from reflectune.retrieval.encoders.checkpoints import (
    Checkpoint,
    find_checkpoint,
    load_config,
    load_tokenizer,
    load_weights,
)

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


def load_encoder(name: str, *, device: str = "cpu") -> ImageTextEncoder:
    """Load an encoder.

    Args:
        name: `miniature/clip`, a folder, or a hub id, e.g. `openai/clip-vit-large-patch14`, perhaps with a commit
            (`owner/name@COMMIT`), which weights that are not in safetensors format need; `catalogue.py` has some.
        device: `cpu`, `cuda`, …; `auto` takes an accelerator if there is one.

    Raises:
        UserError: There is no such encoder, its files are damaged, unsafe or of another model, it does not encode both
            images and texts, or there is no such device.
    """
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
        inputs = self._image_processor(images=[image.convert("RGB") for image in images], return_tensors="pt")
        with torch.inference_mode():
            return _unit(self._model.get_image_features(**inputs.to(self._model.device)))

    def encode_texts(self, texts: Sequence[str]) -> Vectors:
        """Vectors of length 1, shape (n, dimensions); a text too long for the model is cut."""
        if not texts:
            return np.zeros((0, self.dimensions), dtype=np.float32)
        inputs = self._tokenizer(
            list(texts), padding=self._padding, truncation=True, max_length=self._longest, return_tensors="pt"
        )
        inputs.pop("token_type_ids", None)
        with torch.inference_mode():
            return _unit(self._model.get_text_features(**inputs.to(self._model.device)))


def _image_processor(checkpoint: Checkpoint) -> Any:
    from transformers import AutoImageProcessor

    try:
        return AutoImageProcessor.from_pretrained(checkpoint.folder, backend="pil", trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise UserError(
            f"the image processor of {checkpoint.name} cannot be loaded from {checkpoint.folder}: {error}; check or "
            "replace its files"
        ) from error


def _unit(output: Any) -> Vectors:
    """Rows of a model's output, scaled to length 1."""
    rows = output if isinstance(output, torch.Tensor) else output.pooler_output
    return torch.nn.functional.normalize(rows.float(), dim=-1).cpu().numpy()

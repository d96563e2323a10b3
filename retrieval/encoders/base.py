"""Interface of encoders of images and texts, with their shared parts: unit vectors and image preparation."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

from reflectune.core.errors import UserError
from reflectune.core.hashing import fingerprint
from reflectune.core.images import keep_ready, ready_for, to_rgb
from reflectune.core.weights import UNLOADABLE
from reflectune.models.rendering.image_fitting import call_processor
from reflectune.models.weights.pretrained import try_image_processor
from reflectune.retrieval.encoders.checkpoints import Checkpoint

Vectors = npt.NDArray[np.float32]
Prepared = Mapping[str, Tensor]
"""Model inputs of images by name, each of shape (images, …)."""
TextSpace = Literal["shared", "mapped", "separate"]
"""Space of an encoder's texts: the images' space, a space that images are mapped into, or an unrelated one."""


class ImageTextEncoder(ABC):
    """Encode images and texts as unit vectors, whose inner product is their cosine similarity.

    An encoder sets `name`, `fingerprint` and `dimensions`, and implements `encode_images` and `encode_texts`. All other
    members have defaults for an encoder with one space.

    Attributes:
        name: Name as given by the user.
        revision: Commit on the hub; "" for a folder.
        fingerprint: Hash of its files. Vectors of encoders with different fingerprints are not comparable.
        dimensions: Length of an image's vector.
        precision: Precision of the weights: `float32`, `bfloat16` or `float16`.
        longest: Tokens after which a text is truncated; None: never.
        text_space: Space of the texts' vectors.
        reads_pairs: True if `encode_pairs` reads an image and a text together.
    """

    name: str
    revision: str = ""
    fingerprint: str
    dimensions: int
    precision: str = "float32"
    longest: int | None = None
    text_space: TextSpace = "shared"
    reads_pairs: bool = False

    @property
    def title_dimensions(self) -> int:
        """Length of a text's vector."""
        return self.dimensions

    @abstractmethod
    def encode_images(self, images: Sequence[Image.Image]) -> Vectors:
        """Return vectors of images, shape (n, dimensions)."""

    @abstractmethod
    def encode_texts(self, texts: Sequence[str]) -> Vectors:
        """Return vectors of queries' texts, shape (n, title_dimensions); too long texts are truncated."""

    def encode_entry_texts(self, texts: Sequence[str]) -> Vectors:
        """Return vectors of entries' titles or summaries, shape (n, title_dimensions)."""
        return self.encode_texts(texts)

    def encode_pairs(self, images: Sequence[Image.Image], texts: Sequence[str]) -> Vectors:
        """Return vectors of pairs of an image and a text, shape (n, dimensions); by default of their vectors' sum."""
        return scaled(self.encode_images(images) + self.encode_texts(texts))

    def too_long(self, texts: Sequence[str]) -> list[bool]:
        """Return True for each text that is truncated."""
        return [False for _ in texts]

    def to_title_space(self, images: Vectors) -> Vectors:
        """Map vectors of images, shape (n, dimensions), into the space of texts, shape (n, title_dimensions)."""
        return images

    def mix(self, images: Vectors, texts: Sequence[str]) -> Vectors:
        """Mix each entry image's vector with a text, shape (n, dimensions); by default return the images' vectors."""
        return images

    def prepare(self, image: Image.Image) -> Any:
        """Return the model input of an image. Several threads may call this."""
        return image

    def prepare_ahead(self, image: Image.Image) -> None:  # noqa: B027  does nothing by default
        """Prepare an image for a later `encode_images` of the same object, if supported. Any thread may call this."""

    def join(self, prepared: Sequence[Any]) -> Any:
        """Join prepared images to one batch in CPU memory."""
        return prepared

    def encode_prepared(self, joined: Any) -> Vectors:
        """Return the vectors of joined images as `encode_images` does, shape (n, dimensions)."""
        return self.encode_images(joined)


class ImageModel(ABC):
    """Image encoder whose image processor returns tensors of one shape.

    Args:
        name: Name of the encoder.
        processor: Its image processor.
        device: Device of the model.
        dtype: Precision of the weights.

    Attributes:
        name: Name of the encoder.
        revision: Commit on the hub; "" for a folder.
        fingerprint: Hash of its files and its precision.
        dimensions: Length of a vector.
        precision: Precision of the weights, by name.
    """

    revision: str
    fingerprint: str
    dimensions: int

    def __init__(self, name: str, processor: Any, device: torch.device, dtype: torch.dtype) -> None:
        self.name, self.precision = name, dtype_name(dtype)
        self._processor, self._device, self._dtype = processor, device, dtype

    @abstractmethod
    def features(self, inputs: Prepared) -> Tensor:
        """Return a batch's vectors before scaling, on the model's device, shape (n, dimensions)."""

    def prepare(self, image: Image.Image) -> Prepared:
        """Return the model input of an image in float32."""
        return dict(call_processor(self._processor, image, resized(to_rgb(image), self._processor)))

    def prepare_ahead(self, image: Image.Image) -> None:
        """Prepare an image for a later `encode_images` of the same object. Any thread may call this."""
        keep_ready(image, self, self.prepare(image))

    def join(self, prepared: Sequence[Prepared]) -> Prepared:
        """Return a batch of at least one image, with floats in the model's dtype, in pinned memory for CUDA."""
        joined = {name: torch.cat([inputs[name] for inputs in prepared]) for name in prepared[0]}
        cast = {name: value.to(self._dtype) if value.is_floating_point() else value for name, value in joined.items()}
        return {name: value.pin_memory() for name, value in cast.items()} if self._device.type == "cuda" else cast

    @torch.inference_mode()
    def encode_prepared(self, joined: Prepared) -> Vectors:
        """Return vectors of length 1, shape (n, dimensions)."""
        inputs = {name: value.to(self._device, non_blocking=True) for name, value in joined.items()}
        return unit_rows(self.features(inputs), self.name)

    def encode_images(self, images: Sequence[Image.Image]) -> Vectors:
        """Return vectors of length 1, shape (n, dimensions)."""
        if not images:
            return no_vectors(self.dimensions)
        return self.encode_prepared(self.join([ready_for(image, self) or self.prepare(image) for image in images]))


def projected(output: Any) -> Tensor:
    """Return a model output's projected vectors, or else its pooled ones, shape (n, dimensions)."""
    if isinstance(output, Tensor):
        return output
    return output.image_embeds if getattr(output, "image_embeds", None) is not None else output.pooler_output


def load_image_processor(checkpoint: Checkpoint) -> Any:
    """Return a repository's image processor with the PIL backend.

    torchvision resizes a little differently, and the index and queries must be encoded from the same pixels.

    Raises:
        UserError: Its files are damaged or missing.
    """
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


def resized(image: Image.Image, processor: Any) -> Image.Image:
    """Resize an image as CLIP's or SigLIP's image processor does; return it unchanged for other processors.

    The processor then has nothing to resize, and computes bitwise equal pixels. Its own resizing converts the whole
    image to an array and back, which blocks other threads.

    Args:
        image: In RGB.
        processor: An image processor that resizes with Pillow.
    """
    if not (isinstance(processor, (CLIPImageProcessorPil, SiglipImageProcessorPil)) and processor.do_resize):
        return image
    size = dict(processor.size)
    if short := size.get("shortest_edge"):
        shortest, longest = sorted(image.size)
        long = int(short * longest / shortest)
        width, height = (short, long) if image.width <= image.height else (long, short)
    else:
        width, height = size["width"], size["height"]
    return image.resize((width, height), resample=processor.resample)


def dtype_name(dtype: torch.dtype) -> str:
    """Return a dtype's name in configs, e.g. `float32`."""
    return str(dtype).removeprefix("torch.")


def with_dtype(files: str, dtype: torch.dtype) -> str:
    """Return an encoder's fingerprint: in float32 that of its files, else a hash of it and the dtype."""
    return files if dtype == torch.float32 else fingerprint([files, str(dtype)])


def unit_rows(rows: Tensor, name: str) -> Vectors:
    """Scale the rows of a model's output to length 1, shape (n, d); `name` is the encoder's.

    Raises:
        UserError: A row is zero or not finite, so that its similarities mean nothing.
    """
    lengths = rows.float().norm(dim=-1, keepdim=True)
    if not bool((lengths.isfinite() & (lengths > 0)).all()):
        raise UserError(
            f"the encoder {name} computes vectors that are zero or not finite: replace its weights, which are damaged"
        )
    return (rows.float() / lengths).cpu().numpy()


def scaled(rows: Vectors) -> Vectors:
    """Scale vectors to length 1, shape (n, d); zero vectors stay zero."""
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)


def no_vectors(dimensions: int) -> Vectors:
    """Return an empty batch of vectors, shape (0, dimensions)."""
    return np.zeros((0, dimensions), dtype=np.float32)

"""Encode images and texts in two separate spaces, `pair:IMAGE+TEXT`: by an image tower and a text encoder.

MI-RAG (arXiv 2509.00798) and PMSR compare images with images and texts with texts: the score is the weighted sum of
both cosines. The text encoder's prefixes, pooling and length are those of its model card (`presets.py`); queries and
entries' texts have different prefixes.

`mixture:IMAGE+TEXT` also mixes each entry's image with its text.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from PIL import Image

from reflectune.core.hashing import fingerprint
from reflectune.retrieval.encoders.base import ImageModel, ImageTextEncoder, Prepared, Vectors, scaled
from reflectune.retrieval.encoders.checkpoints import find_checkpoint
from reflectune.retrieval.encoders.clip import ClipEncoder
from reflectune.retrieval.encoders.presets import text_settings
from reflectune.retrieval.encoders.text_encoder import TextEncoder

_REMEDY = "use a text encoder that declares its pooling, or one of presets.py"


class TowerEncoder(ImageTextEncoder):
    """An encoder whose images are encoded by a separate image model.

    Args:
        tower: The model of the images.
    """

    def __init__(self, tower: ImageModel) -> None:
        self._tower = tower
        self.dimensions, self.precision = tower.dimensions, tower.precision

    def prepare(self, image: Image.Image) -> Prepared:
        """Return the tower's input of an image."""
        return self._tower.prepare(image)

    def prepare_ahead(self, image: Image.Image) -> None:
        """Prepare an image for a later `encode_images` of the same object. Any thread may call this."""
        self._tower.prepare_ahead(image)

    def join(self, prepared: Sequence[Prepared]) -> Prepared:
        """Join prepared images to one batch in CPU memory."""
        return self._tower.join(prepared)

    def encode_prepared(self, joined: Prepared) -> Vectors:
        """Return vectors of length 1, shape (n, dimensions)."""
        return self._tower.encode_prepared(joined)

    def encode_images(self, images: Sequence[Image.Image]) -> Vectors:
        """Return vectors of length 1, shape (n, dimensions)."""
        return self._tower.encode_images(images)


class SideBySideEncoder(TowerEncoder):
    """An image tower and a text encoder with separate spaces.

    Args:
        name: Name of the encoder, as given.
        tower: The image tower.
        text: Name of the text encoder, which is loaded in the tower's precision.
        device: Device of both.
    """

    text_space = "separate"

    def __init__(self, name: str, tower: ImageModel, text: str, device: torch.device) -> None:
        super().__init__(tower)
        settings = text_settings(text, similarity="cosine", dtype=tower.precision)
        self._texts = TextEncoder(find_checkpoint(text), settings, device, _REMEDY)
        self.name, self.longest = name, self._texts.longest
        self.revision = "+".join(filter(None, (tower.revision, self._texts.revision)))
        self.fingerprint = fingerprint([name.partition(":")[0], tower.fingerprint, self._texts.fingerprint])

    @property
    def title_dimensions(self) -> int:
        """Length of a text's vector."""
        return self._texts.dimensions

    def encode_texts(self, texts: Sequence[str]) -> Vectors:
        """Return vectors of queries' texts, of length 1, shape (n, title_dimensions)."""
        return self._texts.encode_queries(texts)

    def encode_entry_texts(self, texts: Sequence[str]) -> Vectors:
        """Return vectors of entries' texts, of length 1, shape (n, title_dimensions)."""
        return self._texts.encode_passages(texts)

    def too_long(self, texts: Sequence[str]) -> list[bool]:
        """Return True for each query's text that is truncated."""
        return self._texts.too_long(texts)


class MixtureEncoder(SideBySideEncoder):
    """A `SideBySideEncoder` that mixes each entry's image with its text, as RA-CM3 does (arXiv 2211.12561).

    MI-RAG's large retriever (§6.2, appendix D) compares a question's image with the mean of the vectors of an entry's
    image and text, both encoded by the image tower, a whole CLIP or SigLIP.
    """

    def __init__(self, name: str, whole: ClipEncoder, text: str, device: torch.device) -> None:
        super().__init__(name, whole, text, device)
        self._whole = whole

    def mix(self, images: Vectors, texts: Sequence[str]) -> Vectors:
        """Average each image's vector with the tower's vector of a text: unit length, shape (n, dimensions).

        Texts are truncated to the tower's length.
        """
        return scaled(images + self._whole.encode_texts(texts))

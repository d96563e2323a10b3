"""An encoder without a model."""

from collections.abc import Callable, Sequence

import numpy as np
from PIL import Image

from reflectune.retrieval.encoders.base import ImageTextEncoder


class KeyedEncoder(ImageTextEncoder):
    """An encoder of one space by `vector`, which makes a vector of a text. An image is known by its first pixel."""

    name, fingerprint = "keyed", "f"
    dimensions: int
    vector: Callable[[str], np.ndarray]

    def encode_images(self, images: Sequence[Image.Image]) -> np.ndarray:
        return self.encode([f"image {image.getpixel((0, 0))}" for image in images])

    def encode_texts(self, texts: Sequence[str]) -> np.ndarray:
        return self.encode([f"text {text}" for text in texts])

    def encode(self, keys: Sequence[str]) -> np.ndarray:
        return np.array([self.vector(key) for key in keys], dtype=np.float32).reshape(-1, self.dimensions)

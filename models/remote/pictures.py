"""Pictures as data URLs, encoded once for all requests about them."""

from __future__ import annotations

import base64
import functools
import hashlib
import threading
from typing import Final

from PIL import Image

from reflectune.core.images import encode_image

MOST_ENCODED: Final = 1 << 28
"""Most characters of the pictures that are kept as they are sent: those of a batch of questions."""


class PictureUrls:
    """Cache of data URLs by picture, which threads may share.

    Args:
        max_pixels: Most pixels of a picture that is sent; 0: any.
        lossless: True to send a picture as PNG where its file's own bytes can't be sent, not as JPEG.
    """

    def __init__(self, max_pixels: int = 0, *, lossless: bool = False) -> None:
        self._max_pixels, self._lossless = max_pixels, lossless
        self._size, self._lock = 0, threading.Lock()
        self._encoded: dict[int, tuple[Image.Image, str]] = {}

    def of(self, image: Image.Image) -> str:
        """Return a picture's data URL."""
        with self._lock:
            return self._of(image)

    def _of(self, image: Image.Image) -> str:
        if id(image) not in self._encoded:
            mime, content = encode_image(image, self._max_pixels, lossless=self._lossless)
            url = f"data:{mime};base64,{base64.b64encode(content).decode()}"
            self._size += len(url)
            while self._encoded and self._size > MOST_ENCODED:
                self._size -= len(self._encoded.pop(next(iter(self._encoded)))[1])
            self._encoded[id(image)] = image, url
        return self._encoded[id(image)][1]


@functools.lru_cache(maxsize=256)
def url_key(url: str) -> str:
    """Return the hash of a picture's data URL; all requests about a picture share one URL."""
    return hashlib.sha256(url.encode()).hexdigest()


def content_of(url: str) -> bytes:
    """Return the bytes of a picture's data URL."""
    return base64.b64decode(url.partition(",")[2])

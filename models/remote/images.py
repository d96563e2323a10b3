"""Images as data URLs, encoded once for all requests about them."""

from __future__ import annotations

import base64
import functools
import hashlib
import threading
import weakref
from typing import Final

from PIL import Image

from reflectune.core.images import encode_image

MAX_ENCODED: Final = 1 << 28
"""Maximum characters of cached data URLs; enough for the images of pending questions."""


class ImageUrls:
    """Thread-safe cache of data URLs by image.

    Args:
        max_pixels: Maximum pixels of an image that is sent; 0: any.
        lossless: Send PNG instead of JPEG if an image's file can't be sent unchanged.
    """

    def __init__(self, max_pixels: int = 0, *, lossless: bool = False) -> None:
        self._max_pixels, self._lossless = max_pixels, lossless
        self._lock = threading.Lock()
        self._encoded: dict[int, str] = {}

    def of(self, image: Image.Image) -> str:
        """Return an image's data URL; it is cached until the image is garbage-collected."""
        with self._lock:
            if (url := self._encoded.get(id(image))) is None:
                mime, content = encode_image(image, self._max_pixels, lossless=self._lossless)
                url = f"data:{mime};base64,{base64.b64encode(content).decode()}"
                while self._encoded and len(url) + sum(map(len, [*self._encoded.values()])) > MAX_ENCODED:
                    self._encoded.pop(next(iter(self._encoded)), None)
                self._encoded[id(image)] = url
                weakref.finalize(image, self._encoded.pop, id(image), None)
            return url


@functools.lru_cache(maxsize=32)  # a URL may have 10 MB
def url_key(url: str) -> str:
    """Return the hash of an image's data URL; all requests about an image share one URL."""
    return hashlib.sha256(url.encode()).hexdigest()

"""Images of requests: the bytes of a file, or a data URL. Addresses and paths are never opened."""

from __future__ import annotations

import base64
import binascii
import re
from typing import Final

from PIL import Image

from reflectune.core.images import BadImage, open_image, read_header
from reflectune.inference.serving.problems import RequestProblem

MAX_IMAGE_MB: Final = 10
"""Maximum megabytes of an image's file."""
MAX_MEGAPIXELS: Final = 32
"""Maximum megapixels of an image, and of all images of a request."""
_DATA_URL: Final = re.compile(r"data:[\w.+/;=-]{0,100}?;base64,", re.IGNORECASE)
"""Beginning of a data URL. Its media type is ignored: the bytes decide."""


def from_data_url(url: str) -> bytes:
    """Return the bytes in a data URL.

    Raises:
        RequestProblem: It is a different URL, or not Base64.
    """
    if not (head := _DATA_URL.match(url)):
        problem = "an image must be a data URL, data:image/png;base64,…; addresses and paths are not opened"
        raise RequestProblem(400, problem)
    try:
        return base64.b64decode("".join(url[head.end() :].split()), validate=True)
    except (binascii.Error, ValueError):
        raise RequestProblem(400, "the image's data URL is not valid Base64") from None


def read_image(content: bytes) -> Image.Image:
    """Decode an image within the limits, upright. Its size is checked before it is decoded.

    Raises:
        RequestProblem: The image is damaged (400); or see `count_pixels`.
    """
    count_pixels(content)
    try:
        return open_image(content)
    except BadImage as error:
        raise RequestProblem(400, str(error)) from error


def count_pixels(content: bytes) -> int:
    """Return the number of an image's pixels, without decoding it.

    Raises:
        RequestProblem: It is too large (413), animated or not an image (415).
    """
    if len(content) > MAX_IMAGE_MB * 10**6:
        raise RequestProblem(413, f"the image's file is larger than {MAX_IMAGE_MB} MB; scale it down")
    try:
        header = read_header(content)
    except BadImage as error:
        if isinstance(error.__cause__, Image.DecompressionBombError):
            raise RequestProblem(413, str(error)) from error
        if error.__cause__ is None:  # a strip
            raise RequestProblem(400, str(error)) from error
        raise RequestProblem(415, "the image's format is not supported; send a JPEG, PNG or WebP") from error
    if header.width * header.height > MAX_MEGAPIXELS * 10**6:
        size = f"{header.width:,} × {header.height:,} pixels"
        raise RequestProblem(413, f"the image has {size}, more than {MAX_MEGAPIXELS} million; scale it down")
    if header.is_animated:
        raise RequestProblem(415, "the image is animated; send a single frame")
    return header.width * header.height

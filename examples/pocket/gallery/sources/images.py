"""Images of the sources, read on white, square, of at most 336 pixels."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final, Literal

from PIL import Image, ImageDraw, ImageFont

from reflectune.core.errors import UserError
from reflectune.core.images import BadImage, open_image

SIDE: Final = 336
"""Pixels of the side of an image; larger ones are scaled down."""
SMALLEST: Final = 72
"""Minimum pixels of an image's longer side."""


class Unusable(UserError):
    """An image that is too small, or a character that is missing in its font."""


Style = Literal["photograph", "drawing", "rendering", "flag"]


@dataclass(frozen=True)
class SourceImage:
    """An image as its source has it.

    Attributes:
        id: Unique in the gallery, `source/name`.
        name: Its subject in the source's words, e.g. `polar bear`; of a flag, the country's two letters.
        category: Kind of thing of the subject, e.g. `animal`; a key of `CATEGORIES`.
        source: Key of the source.
        hand: Its maker: two images of one hand may be by one artist.
        style: Photograph, drawing, …
        file: The image, or the font that has it as a glyph.
        glyph: The character, if `file` is a font.
        size: Pixels to draw the glyph at.
    """

    id: str
    name: str
    category: str
    source: str
    hand: str
    style: Style
    file: Path
    glyph: str = ""
    size: int = 0


def read_image(source: SourceImage) -> Image.Image:
    """Read an image in RGB, cropped to its opaque part, on white, padded to a square. A flag gets a grey edge.

    Raises:
        UserError: The file is not an image, or shows nothing.
        Unusable: Its longer side is below 72 pixels, or the font lacks its character.
    """
    image = _read_cropped(source)
    if source.category == "flag":
        edge = ImageDraw.Draw(image)
        edge.rectangle((0, 0, image.width - 1, image.height - 1), outline=(170, 170, 170), width=2)
    return _squared(image)


def _read_cropped(source: SourceImage) -> Image.Image:
    """Read an image in RGB, cropped to its opaque part, on white."""
    try:
        image = _drawn(source) if source.glyph else open_image(source.file, "RGBA")
    except (BadImage, OSError, ValueError) as error:
        raise UserError(f"image {source.id} is not a readable image: {source.file}: {error}") from error
    box = image.getchannel("A").getbbox()
    if box is None and source.glyph:
        raise Unusable(f"image {source.id}: {source.file} has no such character")
    if box is None or image.convert("RGB").crop(box).getextrema() == ((255, 255),) * 3:
        raise UserError(f"image {source.id} shows nothing: {source.file}; deny it in reviewed.json")
    image = image.crop(box)
    if max(image.size) < SMALLEST:
        width, height = image.size
        raise Unusable(f"image {source.id} is too small: {width} by {height} pixels, at least {SMALLEST} are needed")
    white = Image.new("RGBA", image.size, "white")
    white.alpha_composite(image)
    return white.convert("RGB")


def _drawn(source: SourceImage) -> Image.Image:
    font, margin = _font(source.file, source.size), source.size // 2
    image = Image.new("RGBA", (6 * margin, 6 * margin), (0, 0, 0, 0))
    ImageDraw.Draw(image).text((margin, margin), source.glyph, font=font, embedded_color=True)
    return image


@lru_cache(maxsize=4)
def _font(file: Path, size: int) -> ImageFont.FreeTypeFont:
    return ImageFont.truetype(str(file), size)


def _squared(image: Image.Image) -> Image.Image:
    """Scale an image down to 336 pixels, and pad it to a square with white."""
    image.thumbnail((SIDE - 16, SIDE - 16), Image.Resampling.LANCZOS)
    side = max(image.size) + 16
    square = Image.new("RGB", (side, side), "white")
    square.paste(image, ((side - image.width) // 2, (side - image.height) // 2))
    return square

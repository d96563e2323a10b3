"""The colours of an image by their English names, computed from its pixels."""

from __future__ import annotations

import colorsys
from collections import Counter
from functools import lru_cache
from typing import Literal

import numpy as np
from PIL import Image

CLEAR = 0.7
"""Minimum share of the coloured pixels of an image's main colour."""
OUTLINE = 0.4
"""Share of the pixels below which black is an outline."""
UNIFORM = 0.92
"""Minimum share of an edge's pixels of a stripe's colour."""

Edge = Literal["top", "bottom", "left"]
_BACKGROUND = 243
"""A pixel whose channels all reach this may be background."""
_SCALED = (64, 64)


@lru_cache(maxsize=65536)
def colour_name(red: int, green: int, blue: int) -> str:
    """Return the name of a colour; "" for one between two names.

    Example:
        >>> colour_name(200, 16, 46)
        'red'
    """
    hue, saturation, value = colorsys.rgb_to_hsv(red / 255, green / 255, blue / 255)
    degrees = hue * 360
    if value < 0.22:
        return "black"
    if saturation < 0.12:
        if value > 0.92:
            return "white"
        return "grey" if value < 0.8 else ""
    if degrees < 14 or degrees >= 344:
        if value > 0.85 and saturation < 0.5:
            return "pink"
        return "red" if value > 0.5 and saturation > 0.5 else "brown"
    if degrees < 42:
        if value < 0.72:
            return "brown"
        return "orange" if saturation > 0.6 else ""
    if degrees < 66:
        return "yellow" if value > 0.75 and saturation > 0.35 else ""
    if degrees < 78 or 165 <= degrees < 188:
        return ""
    if degrees < 165:
        return "green"
    if degrees < 255:
        return "blue"
    return "purple" if degrees < 305 else "pink"


def main_colour(image: Image.Image) -> str:
    """Return the main colour, without background and outlines; "" if no colour is clearly the main one."""
    counted = _counted(image)
    del counted[""]
    if counted["black"] < OUTLINE * counted.total():
        del counted["black"]
    if not counted:
        return ""
    (name, count), *_ = counted.most_common(1)
    return name if name and count >= CLEAR * counted.total() else ""


def edge_colour(image: Image.Image, edge: Edge) -> str:
    """Return the one colour of a flag along an edge; "" if there are several.

    Args:
        image: The flag, without a border.
        edge: The edge; an eighth of the flag counts.
    """
    width, height = image.size
    inset = max(2, width // 50)
    boxes = {
        "top": (inset, inset, width - inset, max(inset + 1, height // 8)),
        "bottom": (inset, min(height - inset - 1, height * 7 // 8), width - inset, height - inset),
        "left": (inset, inset, max(inset + 1, width // 8), height - inset),
    }
    counted = _counted(image.crop(boxes[edge]), whole=True)
    (name, count), *_ = counted.most_common(1)
    return name if count >= UNIFORM * counted.total() else ""


def has_colour(image: Image.Image, name: str) -> bool | None:
    """Return True if a flag has a colour; None if it has a little of it, or of one with a similar name."""
    counted = _counted(image, whole=True)
    share = counted[name] / counted.total()
    if share >= 0.08:
        return True
    return False if share == 0 and counted[""] <= 0.02 * counted.total() else None


def _counted(image: Image.Image, *, whole: bool = False) -> Counter[str]:
    """Count the pixels of each colour name in a small copy, without the white background unless `whole` is True."""
    pixels = np.asarray(image.convert("RGB").resize(_SCALED, Image.Resampling.NEAREST))  # (height, width, 3)
    shown = np.ones(pixels.shape[:2], bool) if whole else ~_background(pixels)
    colours, counts = np.unique(pixels[shown], axis=0, return_counts=True)
    counted: Counter[str] = Counter()
    for colour, count in zip(colours.tolist(), counts.tolist(), strict=True):
        counted[colour_name(*colour)] += count
    return counted


def _background(pixels: np.ndarray) -> np.ndarray:
    """Mark pixels that are joined to an edge by bright ones of their row or column: bool of shape (height, width)."""
    bright = pixels.min(axis=2) >= _BACKGROUND
    joined = np.zeros_like(bright)
    for axis in (0, 1):
        for turned in (False, True):
            seen = np.flip(bright, axis) if turned else bright
            reached = np.logical_and.accumulate(seen, axis=axis)
            joined |= np.flip(reached, axis) if turned else reached
    return joined

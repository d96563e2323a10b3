"""Data sets that examples draw: their images, and the manifest of one that is built already."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from PIL import Image

from reflectune.core.durable import write_atomically, write_json
from reflectune.core.errors import UserError
from reflectune.core.partials import writing
from reflectune.formats.dataset import MANIFEST, load_manifest

UNFINISHED: Final = "unfinished.txt"
"""File of a folder with the settings of a data set that is being built into it."""


def save_jpeg(image: Image.Image, path: Path) -> None:
    """Write an image as JPEG, atomically."""
    with writing(path) as partial:
        image.save(partial, format="JPEG", quality=92)


def begin(folder: Path, settings: str) -> dict[str, Any] | None:
    """Mark a folder with the settings that build a data set into it, since an interrupted build's images are kept.

    Args:
        folder: Folder of the data set.
        settings: Hash that the manifest holds under `settings`.

    Returns:
        The manifest if the data set is built already; else None, and `finish` is to be called at the end.

    Raises:
        UserError: The folder holds a different data set, or a part of one.
    """
    if not (folder / MANIFEST).exists():
        marker = folder / UNFINISHED
        if marker.exists() and marker.read_text(encoding="utf-8") != settings:
            raise UserError(f"{folder} holds a part of another data set; delete it, or choose another output folder")
        write_atomically(marker, settings)
        return None
    manifest = load_manifest(folder)
    if manifest.get("settings") != settings:
        name = manifest.get("name", "without a name")
        raise UserError(f"{folder} holds another data set ({name}); choose another output folder")
    return manifest


def finish(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Write a data set's manifest, the last of its files."""
    write_json(folder / MANIFEST, manifest)
    (folder / UNFINISHED).unlink()

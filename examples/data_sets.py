"""Data sets that examples draw: their pictures, and the manifest of one that is built already."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from PIL import Image

from reflectune.core.errors import UserError
from reflectune.core.partials import writing
from reflectune.formats.dataset import MANIFEST, load_manifest


def save_jpeg(image: Image.Image, path: Path) -> None:
    """Write an image as JPEG, atomically."""
    with writing(path) as partial:
        image.save(partial, format="JPEG", quality=92)


def built_manifest(folder: Path, settings: str) -> dict[str, Any] | None:
    """Return the manifest of a data set that these settings built into a folder; None if there is none yet.

    Args:
        folder: Folder of the data set.
        settings: Hash that the manifest holds under `settings`.

    Raises:
        UserError: The folder holds a different data set.
    """
    if not (folder / MANIFEST).exists():
        return None
    manifest = load_manifest(folder)
    if manifest.get("settings") != settings:
        name = manifest.get("name", "without a name")
        raise UserError(f"{folder} holds another data set ({name}); choose another output folder")
    return manifest

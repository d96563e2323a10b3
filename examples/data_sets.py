"""Build an example's data set: its images, its manifest, and the mark of an unfinished build."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from PIL import Image

from reflectune.core.durable import write_atomically, write_json
from reflectune.core.errors import UserError
from reflectune.core.hashing import file_fingerprint
from reflectune.core.partials import writing
from reflectune.core.types import Question
from reflectune.formats.dataset import MANIFEST, load_manifest

UNFINISHED: Final = "unfinished.txt"
"""File with the hash of the settings of a data set that is being built."""


def save_jpeg(image: Image.Image, path: Path) -> None:
    """Write an image as JPEG, atomically."""
    with writing(path) as partial:
        image.save(partial, format="JPEG", quality=92)


def begin(folder: Path, settings: str) -> dict[str, Any] | None:
    """Mark a folder as being built with these settings, so that another build doesn't reuse its images.

    Args:
        folder: Folder of the data set.
        settings: Hash that the manifest holds under `settings`.

    Returns:
        The manifest if the data set is built already. None otherwise: build it, and call `finish`.

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
    """Write a data set's manifest, after all other files."""
    write_json(folder / MANIFEST, manifest)
    (folder / UNFINISHED).unlink()


def content_fingerprint(folder: Path) -> str:
    """Hash a data set's questions and its knowledge base."""
    files = [sorted((folder / part).glob("*.parquet")) for part in ("questions", "knowledge")]
    return "".join(file_fingerprint(*paths)[:8] for paths in files)


def count_questions(splits: Mapping[str, Sequence[Question]]) -> dict[str, dict[str, int]]:
    """Count the questions of each split by their type of answer."""
    return {split: dict(Counter[str](question.answer_type for question in asked)) for split, asked in splits.items()}

"""Paths of images in exported rows: absolute paths, or copies inside the export."""

from __future__ import annotations

import filecmp
import hashlib
import os
import shutil
from pathlib import Path, PurePosixPath
from typing import Literal

from reflectune.core.errors import UserError
from reflectune.core.images import BadImage, read_header
from reflectune.core.partials import writing
from reflectune.core.paths import Roots, resolve_below

FOLDER = "images"


class ImagePlacer:
    """A function from the data's image path to the exported row's, which copies the image if asked to.

    Args:
        roots: The folders that the data's paths may lead into; relative ones start at the first.
        mode: Absolute paths, or copies.
        output: Folder of the copies, which are named from there: `images/…`.
        write: False only checks that the images exist.
    """

    def __init__(self, roots: Roots, mode: Literal["absolute", "copy"], output: Path, *, write: bool = True) -> None:
        self._roots, self._mode, self._output, self._write = roots, mode, output, write
        self._start = Path(roots) if isinstance(roots, str | Path) else Path(roots[0])
        self._placed: dict[str, str] = {}

    def __call__(self, image: str) -> str:
        """Return the image's path in the row.

        Raises:
            UserError: The image does not exist or lies outside the data's folders, or a copied file is not an image.
        """
        if image not in self._placed:
            source = resolve_below(image, self._roots)
            if not source.is_file():
                raise UserError(f"image not found: {source}")
            self._placed[image] = self._copy(source, image) if self._mode == "copy" else self._absolute(image)
        return self._placed[image]

    def _absolute(self, image: str) -> str:
        # Links stay unresolved: in the Hub's cache their targets have no extension.
        return Path(os.path.abspath(self._start / image)).as_posix()

    @property
    def count(self) -> int:
        """Number of different images so far."""
        return len(self._placed)

    def _copy(self, source: Path, image: str) -> str:
        _check_image(source)
        name = f"{FOLDER}/{_inner_name(image)}"
        target = self._output / name
        if self._write and not (target.is_file() and filecmp.cmp(source, target)):
            with writing(target) as partial:
                shutil.copy2(source, partial)
        return name


def _check_image(path: Path) -> None:
    """Refuse to copy a file that is not an image: it could be any file that the user can read."""
    try:
        read_header(path)
    except BadImage as error:
        fix = "fix the row's `image`, or leave the row out"
        raise UserError(f"{path} is not a readable image, and is not copied; {fix} ({error.problem})") from error


def _inner_name(image: str) -> str:
    """Return the path of a copy below `images/`: its own relative path, or name and hash if that leads elsewhere."""
    path = PurePosixPath(os.path.normpath(image))
    if path.is_absolute() or ".." in path.parts:
        return f"{hashlib.sha256(image.encode()).hexdigest()[:12]}_{path.name}"
    return str(path)

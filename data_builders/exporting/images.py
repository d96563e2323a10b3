"""Where an exported row finds its image: at its absolute path, or as a copy inside of the export."""

from __future__ import annotations

import filecmp
import hashlib
import os
import shutil
from pathlib import Path, PurePosixPath
from typing import Literal

from reflectune.core.errors import UserError

FOLDER = "images"


class ImagePlacer:
    """Says by which path a row names its image, and copies images that are to be copied.

    Args:
        root: The folder that the data's paths start from.
        mode: Absolute paths, or copies.
        output: Copies go into its folder `images`, and are named from there: `images/…`.
        write: False to only check that the images are there.
    """

    def __init__(self, root: Path, mode: Literal["absolute", "copy"], output: Path, *, write: bool = True) -> None:
        self._root, self._mode, self._output, self._write = root, mode, output, write
        self._placed: dict[str, str] = {}

    def __call__(self, image: str) -> str:
        """The path that a row names.

        Raises:
            UserError: There is no such image.
        """
        if image not in self._placed:
            source = Path(os.path.abspath(self._root / image))
            if not source.is_file():
                raise UserError(f"image not found: {source}")
            self._placed[image] = self._copy(source, image) if self._mode == "copy" else source.as_posix()
        return self._placed[image]

    @property
    def count(self) -> int:
        """Different images so far."""
        return len(self._placed)

    def _copy(self, source: Path, image: str) -> str:
        name = f"{FOLDER}/{_inner_name(image)}"
        target = self._output / name
        if self._write and not (target.is_file() and filecmp.cmp(source, target)):
            target.parent.mkdir(parents=True, exist_ok=True)
            partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
            try:
                shutil.copy2(source, partial)
                os.replace(partial, target)
            finally:
                partial.unlink(missing_ok=True)
        return name


def _inner_name(image: str) -> str:
    """The path of a copy below `images/`: the image's own relative path; one that leads elsewhere gets a hash."""
    path = PurePosixPath(os.path.normpath(image))
    if path.is_absolute() or ".." in path.parts:
        return f"{hashlib.sha256(image.encode()).hexdigest()[:12]}_{path.name}"
    return str(path)

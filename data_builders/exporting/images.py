"""Where an exported row finds its image: at its absolute path, or as a copy inside of the export."""

from __future__ import annotations

import filecmp
import hashlib
import os
import shutil
from pathlib import Path, PurePosixPath
from typing import Final, Literal

from PIL import Image, UnidentifiedImageError

from reflectune.core.errors import UserError
from reflectune.core.paths import Roots, resolve_below

FOLDER = "images"


class ImagePlacer:
    """Says by which path a row names its image, and copies images that are to be copied.

    Args:
        roots: The folders that the data's paths may lead into; relative ones start at the first.
        mode: Absolute paths, or copies.
        output: Copies go into its folder `images`, and are named from there: `images/…`.
        write: False to only check that the images are there.
    """

    def __init__(self, roots: Roots, mode: Literal["absolute", "copy"], output: Path, *, write: bool = True) -> None:
        self._roots, self._mode, self._output, self._write = roots, mode, output, write
        self._start = Path(roots) if isinstance(roots, str | Path) else Path(roots[0])
        self._placed: dict[str, str] = {}

    def __call__(self, image: str) -> str:
        """The path that a row names.

        Raises:
            UserError: There is no such image, it is outside of the data's folders, or it is to be copied and is no
                picture.
        """
        if image not in self._placed:
            source = resolve_below(image, self._roots)
            if not source.is_file():
                raise UserError(f"image not found: {source}")
            self._placed[image] = self._copy(source, image) if self._mode == "copy" else self._absolute(image)
        return self._placed[image]

    def _absolute(self, image: str) -> str:
        """The path as it is named: what a link in the Hub's cache leads to has no extension."""
        return Path(os.path.abspath(self._start / image)).as_posix()

    @property
    def count(self) -> int:
        """Different images so far."""
        return len(self._placed)

    def _copy(self, source: Path, image: str) -> str:
        _check_picture(source)
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


def _check_picture(path: Path) -> None:
    """Refuse a file that is no picture; it may be anything else that the user can read.

    Raises:
        UserError: It begins like no picture that Pillow knows.
    """
    try:
        with Image.open(path, formats=_PICTURES):
            return
    except Image.DecompressionBombError as error:
        raise UserError(f"image too large to decode safely: {path}: {error}; scale it down first") from error
    except (UnidentifiedImageError, OSError, SyntaxError, ValueError) as error:
        raise UserError(f"{path} is no picture, and is not copied; mend the row's `image`, or leave it out") from error


_PICTURES: Final = ("AVIF", "BMP", "GIF", "JPEG", "JPEG2000", "PNG", "PPM", "TIFF", "WEBP")
"""What is copied, as Pillow calls it. It also takes HDF5, GRIB, PostScript and Office files for pictures."""


def _inner_name(image: str) -> str:
    """The path of a copy below `images/`: the image's own relative path; one that leads elsewhere gets a hash."""
    path = PurePosixPath(os.path.normpath(image))
    if path.is_absolute() or ".." in path.parts:
        return f"{hashlib.sha256(image.encode()).hexdigest()[:12]}_{path.name}"
    return str(path)

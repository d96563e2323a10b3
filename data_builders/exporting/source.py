"""Input of an export: the data file, its scheme, its image folders, and the bad rows found in it."""

from __future__ import annotations

import filecmp
import hashlib
import json
import os
import shutil
from pathlib import Path, PurePosixPath
from typing import Literal

from reflectune.core.durable import write_atomically
from reflectune.core.errors import UserError
from reflectune.core.hashing import file_fingerprint
from reflectune.core.images import BadImage, read_header
from reflectune.core.partials import writing
from reflectune.core.paths import Roots, resolve_below
from reflectune.core.rejected import REJECTED
from reflectune.formats.reflection_data import MANIFEST, bad_rows, image_roots, read_manifest
from reflectune.models.schemes.base import Scheme
from reflectune.models.schemes.registry import find_scheme


def data_file(data: Path, split: str) -> Path:
    """Return the Parquet file of a split: `data` itself if it is a file.

    Raises:
        UserError: The file does not exist.
    """
    file = data if data.is_file() else data / f"{split}.parquet"
    if not file.is_file():
        raise UserError(f"reflection data not found: {file}; build it with build_mr2ag, or set `split`")
    return file


def scheme_and_images(folder: Path, scheme: str, image_root: str) -> tuple[Scheme, tuple[Path, ...]]:
    """Return the data's scheme, and the folders that its image paths may lead into. Relative paths start at the first.

    Args:
        folder: Folder of the data.
        scheme: Name of the scheme; "" takes the manifest's.
        image_root: Folder of the images; "" takes the manifest's.

    Raises:
        UserError: The manifest names a different scheme.
    """
    if not (folder / MANIFEST).is_file():
        return find_scheme(scheme), (Path(image_root), folder)
    manifest = read_manifest(folder)
    if scheme and scheme != manifest.scheme:
        raise UserError(f"{folder} was built for the scheme `{manifest.scheme}`, and `scheme` is {scheme}")
    roots = (Path(image_root), folder) if image_root else image_roots(folder, manifest)
    return find_scheme(manifest.scheme), roots


class BadRows:
    """The bad rows of a file.

    Args:
        path: The file.
        on_error: `stop` makes them an error, `skip` lists them.
    """

    def __init__(self, path: Path, on_error: Literal["stop", "skip"]) -> None:
        self._path, self._on_error = path, on_error
        self._rows: list[dict[str, str]] = []

    @property
    def count(self) -> int:
        """Number of bad rows so far."""
        return len(self._rows)

    def add(self, row: str, reason: str) -> None:
        """Add a bad row, by its id."""
        self._rows.append({"file": str(self._path), "row": row, "reason": reason})

    def settle(self, output: Path, *, write: bool) -> None:
        """Raise an error for the bad rows, or list them in `rejected.jsonl` next to those of other files.

        Raises:
            UserError: There are bad rows, and `on_error` is `stop`.
        """
        if self._rows and self._on_error == "stop":
            problems = bad_rows(self._path, [f"{bad['row']}: {bad['reason']}" for bad in self._rows])
            raise UserError(f"{problems}\n`--on_error skip` leaves them out")
        if not write:
            return
        rejected = output / REJECTED
        lines = rejected.read_text(encoding="utf-8").splitlines() if rejected.is_file() else []
        file = os.path.realpath(self._path)
        lines = [line for line in lines if os.path.realpath(json.loads(line)["file"]) != file]
        lines += [json.dumps(bad) for bad in self._rows]
        if lines:
            write_atomically(rejected, "\n".join(lines) + "\n")
        else:
            rejected.unlink(missing_ok=True)


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
            # Links stay unresolved: in the Hub's cache their targets have no extension.
            absolute = Path(os.path.abspath(self._start / image)).as_posix()
            self._placed[image] = self._copy(source, image) if self._mode == "copy" else absolute
        return self._placed[image]

    @property
    def count(self) -> int:
        """Number of different images so far."""
        return len(self._placed)

    def _copy(self, source: Path, image: str) -> str:
        _check_image(source)
        target = self._output / FOLDER / _inner_name(image)
        if target.is_file() and not filecmp.cmp(source, target, shallow=False):  # of a different data set's export
            target = target.with_name(f"{file_fingerprint(source)[:12]}_{target.name}")
        if self._write and not target.is_file():
            with writing(target) as partial:
                shutil.copy2(source, partial)
        return target.relative_to(self._output).as_posix()


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

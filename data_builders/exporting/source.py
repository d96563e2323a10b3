"""Input of an export: the data file, its scheme, its image folders, and the bad rows found in it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

from reflectune.core.durable import write_atomically
from reflectune.core.errors import UserError
from reflectune.core.rejected import REJECTED
from reflectune.formats.reflection_data import MANIFEST, image_roots, read_manifest
from reflectune.models.schemes.base import Scheme
from reflectune.models.schemes.registry import find_scheme

_MOST_SHOWN = 10
_MOST_LISTED = 10_000


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
    if image_root:
        return find_scheme(manifest.scheme), (Path(image_root), folder)
    return find_scheme(manifest.scheme), image_roots(folder, manifest)


class BadRows:
    """The bad rows of a file.

    Args:
        path: The file.
        on_error: `stop` makes them an error, `skip` lists them.
    """

    def __init__(self, path: Path, on_error: Literal["stop", "skip"]) -> None:
        self._path, self._on_error = path, on_error
        self._rows: list[dict[str, Any]] = []
        self.count = 0

    def add(self, row: str, reason: str) -> None:
        """Add a bad row, by its id."""
        self.count += 1
        if len(self._rows) < _MOST_LISTED:
            self._rows.append({"file": str(self._path), "row": row, "reason": reason})

    def settle(self, output: Path, *, write: bool) -> None:
        """Raise an error for the bad rows, or list them in `rejected.jsonl` next to those of other files.

        Raises:
            UserError: There are bad rows, and `on_error` is `stop`.
        """
        if self.count and self._on_error == "stop":
            shown = "\n  ".join(f"{bad['row']}: {bad['reason']}" for bad in self._rows[:_MOST_SHOWN])
            more = f"\n  and {self.count - _MOST_SHOWN:,} more" if self.count > _MOST_SHOWN else ""
            raise UserError(
                f"{self._path} has {self.count:,} bad rows; fix them, or leave them out with --on_error skip:\n"
                f"  {shown}{more}"
            )
        if write:
            self._list(output / REJECTED)

    def _list(self, rejected: Path) -> None:
        """Replace the rows of this file in the list; delete a list that becomes empty."""
        lines = rejected.read_text(encoding="utf-8").split("\n") if rejected.is_file() else []
        lines = [line for line in lines if line and json.loads(line)["file"] != str(self._path)]
        lines += [json.dumps(bad, ensure_ascii=False) for bad in self._rows]
        if lines:
            write_atomically(rejected, "\n".join(lines) + "\n")
        else:
            rejected.unlink(missing_ok=True)

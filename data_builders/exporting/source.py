"""The file that is exported or read back: its scheme, where its images are, and its bad rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

from reflectune.core.durable import write_atomically
from reflectune.core.errors import UserError
from reflectune.core.rejected import REJECTED
from reflectune.data_builders.exporting.config import ExportConfig
from reflectune.formats.reflection_data import MANIFEST, image_roots, read_manifest
from reflectune.models.schemes.base import Scheme
from reflectune.models.schemes.registry import find_scheme

_SHOWN = 10
_KEPT = 10_000


def data_file(config: ExportConfig) -> Path:
    """The Parquet file of the split.

    Raises:
        UserError: There is none.
    """
    path = Path(config.data)
    file = path if path.is_file() else path / f"{config.split}.parquet"
    if not file.is_file():
        raise UserError(f"reflection data not found: {file}; build it with data_builders.build_mr2ag, or set `split`")
    return file


def scheme_and_images(config: ExportConfig) -> tuple[Scheme, tuple[Path, ...]]:
    """The data's scheme, and the folders that its image paths may lead into; relative ones start at the first.

    Raises:
        UserError: Another scheme is asked for than the manifest names.
    """
    if not Path(config.folder(), MANIFEST).is_file():
        return find_scheme(config.scheme), (Path(config.image_root), config.folder())
    manifest = read_manifest(config.folder())
    if config.scheme and config.scheme != manifest.scheme:
        raise UserError(f"{config.data} was built for the scheme `{manifest.scheme}`, and `scheme` is {config.scheme}")
    if config.image_root:
        return find_scheme(manifest.scheme), (Path(config.image_root), config.folder())
    return find_scheme(manifest.scheme), image_roots(config.folder(), manifest)


class BadRows:
    """The bad rows of one file.

    Args:
        path: The file that they are in.
        on_error: What is to become of them.
    """

    def __init__(self, path: Path, on_error: Literal["stop", "skip"]) -> None:
        self._path, self._on_error = path, on_error
        self._kept: list[dict[str, Any]] = []
        self.count = 0

    def add(self, row: str, reason: str) -> None:
        """Note a bad row, by its place or id."""
        self.count += 1
        if len(self._kept) < _KEPT:
            self._kept.append({"file": str(self._path), "row": row, "reason": reason})

    def settle(self, output: Path, *, write: bool) -> None:
        """Raise if bad rows are not to be skipped, else list them in `rejected.jsonl`, beside those of other files.

        Raises:
            UserError: There are bad rows, and `on_error` is `stop`.
        """
        if self.count and self._on_error == "stop":
            shown = "\n  ".join(f"{bad['row']}: {bad['reason']}" for bad in self._kept[:_SHOWN])
            more = f"\n  and {self.count - _SHOWN:,} more" if self.count > _SHOWN else ""
            raise UserError(
                f"{self._path} has {self.count:,} bad rows; mend them, or leave them out with --on_error skip:\n"
                f"  {shown}{more}"
            )
        if write:
            self._list(output / REJECTED)

    def _list(self, rejected: Path) -> None:
        """Replace what a list of bad rows says of this file; one with nothing to say is removed."""
        lines = rejected.read_text(encoding="utf-8").split("\n") if rejected.is_file() else []
        kept = [line for line in lines if line and json.loads(line)["file"] != str(self._path)]
        kept += [json.dumps(bad, ensure_ascii=False) for bad in self._kept]
        if kept:
            write_atomically(rejected, "\n".join(kept) + "\n")
        else:
            rejected.unlink(missing_ok=True)

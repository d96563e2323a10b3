"""Paths in data, which may lead into some folders only."""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from reflectune.core.errors import UserError

Roots = str | Path | Sequence[str | Path]
"""Folders that a path may lie in; relative paths start at the first."""


class OutsideRoot(UserError):
    """A path in data leads out of its folders."""


def is_occupied(path: Path) -> bool:
    """Return True for an existing file, or a folder that is not empty."""
    return path.exists() and (not path.is_dir() or any(path.iterdir()))


def resolve_below(path: str | Path, roots: Roots) -> Path:
    """Return the absolute path, links resolved, of a file that data names. The file need not exist.

    Links are followed inside a root. A root may be a link itself, since the user chose it. In the Hugging Face Hub's
    cache a snapshot's files are links into `blobs` of the same repository; these count as below the snapshot.

    Args:
        path: Path in the data; a relative one starts at the first root.
        roots: The folders that it may lead into.

    Raises:
        OutsideRoot: It leads elsewhere.
    """
    folders = [Path(roots)] if isinstance(roots, str | Path) else [Path(root) for root in roots]
    shown = " or ".join(map(str, folders))
    named = os.path.abspath(folders[0] / path)
    try:
        resolved = os.path.realpath(folders[0] / path)
    except ValueError as error:  # a null byte, or half of a surrogate pair
        raise OutsideRoot(f"{str(path)!r:.200} is not the name of a file ({error}); correct it") from error
    allowed = [below for folder in folders for below in _allowed_folders(os.path.abspath(folder))]
    if any(_is_below(resolved, folder) for folder in allowed):
        return Path(resolved)
    if any(_is_below(named, folder) for folder in (*allowed, os.path.abspath(folders[0]))):
        fix = "put the files there (`cp -rl` makes hard links), or name the folder that they are in as `image_root`"
        raise OutsideRoot(f"`{path}` is or passes a link that leads out of {shown}, to {resolved}; {fix}")
    fix = "give a path below it, or name the folder that the files are in as `image_root`"
    raise OutsideRoot(f"`{path}` leads out of {shown}, to {resolved}; {fix}")


def listed_file(folder: str | Path, name: Any, manifest: str) -> Path:
    """Return a file that a folder's manifest lists. It need not exist.

    Raises:
        OutsideRoot: It lies elsewhere, links followed, or its name is not a text.
    """
    where = Path(folder, manifest)
    if not isinstance(name, str) or not name:
        raise OutsideRoot(f"{where} lists {name!r} as a file; copy the folder again, or build it again")
    try:
        resolve_below(name, folder)
    except OutsideRoot as error:
        raise OutsideRoot(f"{where} lists `{name}`, which leads out of its folder; build it again") from error
    return Path(folder, name)


@functools.lru_cache(maxsize=256)
def _allowed_folders(root: str) -> tuple[str, ...]:
    """Return the folders of a root: itself, and `blobs` of the Hub repository that it is a snapshot of or lies in."""
    resolved = Path(os.path.realpath(root))
    snapshots = (folder.parent for folder in (resolved, *resolved.parents) if folder.parent.name == "snapshots")
    repositories = (snapshot.parent for snapshot in snapshots if "--" in snapshot.parent.name)  # datasets--OWNER--NAME
    return (str(resolved), *(str(repository / "blobs") for repository in repositories))


def _is_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip(os.sep) + os.sep)

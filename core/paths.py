"""Resolving a path that data names below the folders that it may lead into, or refusing it; and the user's cache."""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from reflectune.core.errors import UserError

Roots = str | Path | Sequence[str | Path]
"""One folder, or several: relative paths start at the first, and a path may lead into any of them."""


def user_cache(name: str) -> Path:
    """Where what is fetched once for all of a user's runs is kept: `$REFLECTUNE_CACHE/name`, else below `~/.cache`."""
    return Path(os.environ.get("REFLECTUNE_CACHE") or Path.home() / ".cache" / "reflectune").absolute() / name


class OutsideRoot(UserError):
    """A path that data names leads out of the folders that it may lead into."""


def is_occupied(path: Path) -> bool:
    """Whether a file is there, or a folder that holds something."""
    return path.exists() and (not path.is_dir() or any(path.iterdir()))


def absolute_folders(named: Sequence[Any], where: Path) -> tuple[str, ...]:
    """The folders that a record names.

    Raises:
        UserError: One is no absolute path.
    """
    for each in named:
        if not isinstance(each, str) or not os.path.isabs(each) or "\0" in each:
            raise UserError(f"{where}: {each!r} of `image_folders` is no absolute path; build it again")
    return tuple(named)


def resolve_below(path: str | Path, roots: Roots) -> Path:
    """The absolute path, links resolved, of a file that data names. The file need not exist.

    A link is followed as long as it stays below a root. A root may be a link itself: whoever runs the command chose it.
    In the Hugging Face Hub's cache the files of a snapshot are links into `blobs` of the same repository; these count
    as below the snapshot.

    Args:
        path: As the data has it; a relative one starts at the first root.
        roots: The folders that it may lead into.

    Raises:
        OutsideRoot: It leads elsewhere, or is no path.
    """
    folders = [Path(roots)] if isinstance(roots, str | Path) else [Path(root) for root in roots]
    shown = " or ".join(map(str, folders))
    if "\0" in str(path):
        raise OutsideRoot(f"{str(path)!r} holds a zero byte; give the path of a file below {shown}")
    named = os.path.abspath(folders[0] / path)
    resolved = os.path.realpath(folders[0] / path)
    allowed = [place for folder in folders for place in _places(os.path.abspath(folder))]
    if any(_is_below(resolved, place) for place in allowed):
        return Path(resolved)
    if any(_is_below(named, place) for place in (*allowed, os.path.abspath(folders[0]))):
        fix = "put the files there (`cp -rl` makes hard links), or name the folder that they are in as `image_root`"
        raise OutsideRoot(f"`{path}` is or passes a link that leads out of {shown}, to {resolved}; {fix}")
    fix = "give a path below it, or name the folder that the files are in as `image_root`"
    raise OutsideRoot(f"`{path}` leads out of {shown}, to {resolved}; {fix}")


def listed_file(folder: str | Path, name: Any, manifest: str) -> Path:
    """A file of a folder that the folder's manifest lists, which may come from anybody. It need not exist.

    Raises:
        OutsideRoot: It lies elsewhere, links followed, or its name is no text.
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
def _places(root: str) -> tuple[str, ...]:
    """What counts as below a root: the folder, and the blobs of the repository whose snapshot it is or is in."""
    resolved = Path(os.path.realpath(root))
    snapshots = (folder.parent for folder in (resolved, *resolved.parents) if folder.parent.name == "snapshots")
    repositories = (snapshot.parent for snapshot in snapshots if "--" in snapshot.parent.name)  # datasets--OWNER--NAME
    return (str(resolved), *(str(repository / "blobs") for repository in repositories))


def _is_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip(os.sep) + os.sep)

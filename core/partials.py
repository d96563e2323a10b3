"""Files and folders that are written whole or not at all: under a partial name first, which a killed run leaves.

A partial name is `.NAME.PID.partial`, or `.NAME.partial` where several processes write it together, beside NAME.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Final

from reflectune.core.locking import hidden_sibling, is_held

_ENDING, _LOCK = ".partial", ".lock"

DOWNLOADING: Final = (".part", ".crdownload", ".aria2", ".tmp", ".incomplete", ".download")
"""What browsers, aria2, the Hub's client and others put after the name of what is being downloaded."""


def partial_path(path: str | Path, *, common: bool = False) -> Path:
    """Where a file or folder is written before it takes its place.

    Args:
        path: Its place.
        common: Whether several processes write it together; else each has its own.
    """
    return hidden_sibling(Path(path), "partial" if common else f"{os.getpid()}.partial")


def half_downloaded(path: Path) -> Path | None:
    """What a downloader left of a file that it hasn't finished; None if nothing."""
    left = (path.with_name(path.name + ending) for ending in DOWNLOADING)
    return next((each for each in left if each.exists()), None)


@contextlib.contextmanager
def writing(path: str | Path) -> Iterator[Path]:
    """A path to write a file or folder at, which takes its place when the block ends well; else it is deleted.

    A reader sees the old file or the new one, never a part. A folder takes the place of nothing or of an empty one.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = partial_path(path)
    try:
        yield partial
        os.replace(partial, path)
    finally:
        _remove(partial)


@contextlib.contextmanager
def replacing(folder: str | Path) -> Iterator[Path]:
    """A new, empty folder to write in, which takes the folder's place when the block ends well.

    After an error, or a kill, what was there before is there still. Leftovers of a killed process are deleted at the
    next call. To be called by a process that holds the folder (see `reflectune.core.locking`).
    """
    folder = Path(folder)
    partial, old = partial_path(folder, common=True), hidden_sibling(folder, "old")
    folder.parent.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(partial, ignore_errors=True)
    if old.exists() and not folder.exists():
        os.replace(old, folder)  # killed between the two renamings
    shutil.rmtree(old, ignore_errors=True)
    partial.mkdir()
    try:
        yield partial
        if folder.exists():
            os.replace(folder, old)
        os.replace(partial, folder)
    finally:
        if old.exists() and not folder.exists():
            os.replace(old, folder)
        shutil.rmtree(partial, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


def remove_partials(place: str | Path) -> None:
    """Delete what killed runs left beside a file or folder and within it. To be called by a process that holds it.

    Partial files below a folder stay if another process holds the lock beside them.
    """
    place = Path(place)
    partial_name = re.compile(re.escape(hidden_sibling(place, "").name) + r"(\d+\.)?partial")
    for name in os.listdir(place.parent) if place.parent.is_dir() else ():
        if partial_name.fullmatch(name):
            _remove(place.parent / name)
    for folder, folders, files in os.walk(place):
        held = _held_names(Path(folder), files)
        for name in [*folders, *files]:
            if name.startswith(".") and name.endswith(_ENDING) and not held & _names_of(name):
                _remove(Path(folder, name))
        folders[:] = [name for name in folders if not name.endswith(_ENDING) and name not in held]


def _held_names(folder: Path, files: Collection[str]) -> set[str]:
    """What in a folder another process holds."""
    locks = [name for name in files if name.startswith(".") and name.endswith(_LOCK)]
    return {name[1 : -len(_LOCK)] for name in locks if is_held(folder / name)}


def _names_of(partial: str) -> set[str]:
    """What a partial name may be of: `.a.1.partial` is of `a`, by process 1, or of `a.1`."""
    whole = partial[1 : -len(_ENDING)]
    stem, _, pid = whole.rpartition(".")
    return {whole, stem} if pid.isdigit() else {whole}


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)

"""Atomic writing of files and folders: under a partial name first, which a killed run leaves behind.

The partial name is `.NAME.PID.partial`, or `.NAME.partial` if several processes write it together, in NAME's folder.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Collection, Iterator
from pathlib import Path

from reflectune.core.locking import hidden_sibling, is_held

_ENDING, _LOCK = ".partial", ".lock"


def partial_path(path: str | Path, *, common: bool = False) -> Path:
    """Return the path to write a file or folder at before it is renamed.

    Args:
        path: The final path.
        common: True if several processes write it together; else each has its own.
    """
    return hidden_sibling(Path(path), "partial" if common else f"{os.getpid()}.partial")


@contextlib.contextmanager
def writing(path: str | Path) -> Iterator[Path]:
    """Yield a path to write a file or folder at. It is renamed to `path` when the block succeeds, else deleted.

    A reader sees the old file or the new one, never a part. A folder can replace an empty one only.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = partial_path(path)
    try:
        yield partial
        os.replace(partial, path)
    finally:
        _remove(partial)


def remove_partials(path: str | Path) -> None:
    """Delete partial files that killed runs left next to a file or folder, and in it.

    Call it from a process that holds the output. Partial files that another process locks stay.
    """
    path = Path(path)
    partial_name = re.compile(re.escape(hidden_sibling(path, "").name) + r"(\d+\.)?partial")
    for name in os.listdir(path.parent) if path.parent.is_dir() else ():
        if partial_name.fullmatch(name):
            _remove(path.parent / name)
    for folder, folders, files in os.walk(path):
        held = _held_names(Path(folder), files)
        for name in [*folders, *files]:
            if name.startswith(".") and name.endswith(_ENDING) and not held & _names_of(name):
                _remove(Path(folder, name))
        folders[:] = [name for name in folders if not name.endswith(_ENDING) and name not in held]


def _held_names(folder: Path, files: Collection[str]) -> set[str]:
    """Return the names in a folder that other processes lock."""
    locks = [name for name in files if name.startswith(".") and name.endswith(_LOCK)]
    return {name[1 : -len(_LOCK)] for name in locks if is_held(folder / name)}


def _names_of(partial: str) -> set[str]:
    """Return the possible names of a partial file: `.a.1.partial` is `a`, by process 1, or `a.1`."""
    whole = partial[1 : -len(_ENDING)]
    stem, _, pid = whole.rpartition(".")
    return {whole, stem} if pid.isdigit() else {whole}


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)

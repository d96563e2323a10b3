"""Folders that are written whole or not at all, by one process at a time."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def locked(folder: str | Path) -> Iterator[None]:
    """Keep other processes out of a folder until the block ends or the process dies; wait for one that is inside.

    The lock is a file beside the folder. A file system without locks goes unguarded.
    """
    folder = Path(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f".{folder.name}.lock").open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"waiting for another process, which writes {folder}", file=sys.stderr, flush=True)
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError:
            pass
        yield


@contextlib.contextmanager
def replacing(folder: str | Path) -> Iterator[Path]:
    """A new, empty folder to write in, which takes the folder's place when the block ends well.

    After an error, or a kill, what was there before is there still. Leftovers of a killed process are deleted at the
    next call. Call it within `locked(folder)`.
    """
    folder = Path(folder)
    partial, old = folder.with_name(f".{folder.name}.partial"), folder.with_name(f".{folder.name}.old")
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

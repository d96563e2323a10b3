"""The user's cache, which several commands may fill at once: its folder, a lock, and folders replaced whole."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from reflectune.core.locking import hidden_sibling, lock_path, remove, take
from reflectune.core.partials import partial_path


def user_cache(name: str) -> Path:
    """Return a folder of the user's cache: `$REFLECTUNE_CACHE/name`, or in `~/.cache/reflectune`."""
    return Path(os.environ.get("REFLECTUNE_CACHE") or Path.home() / ".cache" / "reflectune").absolute() / name


@contextlib.contextmanager
def locked(path: str | Path) -> Iterator[None]:
    """Keep other processes away from a file or folder inside this block; wait if one is inside already.

    A command's own output is held by `reflectune.core.outputs.hold` instead.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = take(lock_path(path))
    if lock is None:
        print(f"waiting for another process, which writes {path}", file=sys.stderr, flush=True)
        lock = take(lock_path(path), wait=True)
    assert lock is not None  # it was waited for
    try:
        yield
    finally:
        remove(lock)


@contextlib.contextmanager
def replacing(folder: str | Path) -> Iterator[Path]:
    """Yield a new, empty folder, which replaces `folder` when the block succeeds.

    After an error or a kill the old folder is still there. The next call deletes leftovers of a killed process. To be
    called inside `locked`.
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

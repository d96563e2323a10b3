"""Locks on files: one process holds a lock, and the kernel releases it when that process dies.

A lock isn't inherited: a worker that outlives its parent blocks nobody.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
from pathlib import Path
from typing import Final

from filelock import FileLock, Timeout

from reflectune.core.launch_variables import rank

_NAME_BYTES: Final = 200
"""Longer names are cut: file systems take 255 bytes, and a prefix and an ending are added."""

_has_warned = False


def take(path: str | Path, *, wait: bool = False) -> FileLock | None:
    """Lock a file, which is created if it doesn't exist. Its content stays.

    Print one warning on a file system without locks, and go on as if the lock were taken.

    Args:
        path: The file; its folder must exist.
        wait: Wait for the process that holds the lock.

    Returns:
        The lock; None if another process holds it and `wait` is false.

    Raises:
        OSError: The file can't be created or opened.
    """
    # Any user may lock the file that an ended process of a different user left.
    lock = FileLock(os.path.realpath(path), mode=0o666, thread_local=False, fallback_to_soft=False)
    try:
        lock.acquire(blocking=wait)
    except Timeout:
        return None
    except OSError as error:
        if error.filename is not None:
            raise
        _warn(Path(path).parent, error)  # only flock raises an error without a path
    return lock


def remove(lock: FileLock) -> None:
    """Delete a lock's file and release the lock. Do nothing if it isn't held, e.g. in a forked worker."""
    if lock.is_locked:
        with contextlib.suppress(OSError):
            os.unlink(lock.lock_file)  # a process that waits sees that its file is gone, and makes a new one
        lock.release()


def is_held(path: str | Path) -> bool:
    """Return True if a process holds the lock on a file."""
    if not os.path.exists(path):
        return False
    try:
        lock = take(path)
    except OSError:
        return False
    if lock is not None:
        lock.release()
    return lock is None


def lock_path(path: Path) -> Path:
    """Return the file to lock before a file or folder is written: `.NAME.lock` in the same folder."""
    return hidden_sibling(path, "lock")


def hidden_sibling(path: Path, ending: str) -> Path:
    """Return `.NAME.ENDING` in the folder of a file or folder. A very long name is cut and hashed."""
    name = path.name
    if len(os.fsencode(name)) > _NAME_BYTES:
        digest = hashlib.sha256(os.fsencode(name)).hexdigest()[:12]
        name = f"{os.fsencode(name)[:_NAME_BYTES].decode(errors='ignore')}-{digest}"
    return path.parent / f".{name}.{ending}"


def _warn(folder: Path, error: OSError) -> None:
    """Warn once, in the first process of a launch, that nothing is locked."""
    global _has_warned
    if not _has_warned and rank() == 0:
        print(
            f"warning: {folder} is on a file system without locks ({error.strerror}): make sure that no two commands "
            "write the same output at once",
            file=sys.stderr,
            flush=True,
        )
    _has_warned = True

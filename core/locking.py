"""The one lock: an flock on a file, which the kernel lets go of when the process that holds it dies.

A process holds a lock, and its children don't. A subprocess doesn't inherit it (close-on-exec). A forked worker, such
as a DataLoader's, closes its copy at once, so a worker that outlives its parent keeps nobody out; one that writes for
its parent must die with it. The processes of a launch are started by exec, and each takes the lock itself.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import sys
import weakref
from collections.abc import Iterator
from io import FileIO
from pathlib import Path
from typing import Final

_NAME_BYTES: Final = 200
"""A longer name is cut, so that there is room for what is added to it: file systems take 255 bytes."""

_files: weakref.WeakSet[FileIO] = weakref.WeakSet()
_has_warned = False


class Lock:
    """A lock that this process holds until it releases it or dies; see `take`.

    Args:
        path: The file that is locked.
        file: The file, open; unbuffered.
        was_left: Whether the file was there before. A lock file that is removed when the lock is released was then
            left by a process that was killed, or is wanted by another one too.
    """

    def __init__(self, path: Path, file: FileIO, *, was_left: bool) -> None:
        self.path, self.was_left = path, was_left
        self._file = file
        _files.add(file)

    def read(self) -> bytes:
        """The content of the file."""
        return os.pread(self._file.fileno(), 2**20, 0)

    def append(self, content: bytes, *, clear: bool = False) -> None:
        """Add to the file's content, or put this in its place. Nothing happens if another user owns the file."""
        if self._file.writable():
            if clear:
                os.ftruncate(self._file.fileno(), 0)
            self._file.seek(0, os.SEEK_END)
            self._file.write(content)

    def share(self) -> bool:
        """Let others in that take the lock as `shared`. False: another process was faster, and the lock is lost."""
        if _flock(self._file, fcntl.LOCK_SH | fcntl.LOCK_NB):
            return True
        self._file.close()
        return False

    def release(self, *, remove: bool = False) -> None:
        """Let other processes have it; nothing happens the second time.

        Args:
            remove: Whether to delete the file. The last one to release a shared lock does.
        """
        if self._file.closed:
            return
        if remove and _flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB):
            with contextlib.suppress(OSError):  # it may be another user's, or gone
                self.path.unlink()
        self._file.close()


def take(path: str | Path, *, wait: bool = False, shared: bool = False) -> Lock | None:
    """Lock a file, which is made if it isn't there.

    A file system without locks says so; a line warns of it once, and the lock is as good as taken.

    Args:
        path: The file; its folder must be there.
        wait: Whether to wait for the process that has it.
        shared: Whether others may take it too, if they say `shared`.

    Returns:
        The lock; None, without `wait`, if another process has it.

    Raises:
        OSError: The file can't be made or opened.
    """
    path = Path(path)
    mode = (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB)
    while True:
        was_left = path.exists()
        file = _open(path)
        if not _flock(file, mode):
            file.close()
            return None
        if _is_at(path, file):
            return Lock(path, file, was_left=was_left)
        file.close()  # it was deleted by the process that had it


def is_held(path: str | Path) -> bool:
    """Whether a process holds the lock on a file."""
    try:
        with open(path, "rb", buffering=0) as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        pass  # it is not there, or the file system has no locks
    return False


@contextlib.contextmanager
def locked(place: str | Path) -> Iterator[None]:
    """Keep other processes out of a file or folder until the block ends or the process dies; wait for one inside.

    For what many commands share, such as the user's cache. What a command writes for the user is held instead, see
    `reflectune.core.outputs.hold`. The lock is a file beside the place.
    """
    place = Path(place)
    place.parent.mkdir(parents=True, exist_ok=True)
    path = lock_path(place)
    lock = take(path)
    if lock is None:
        print(f"waiting for another process, which writes {place}", file=sys.stderr, flush=True)
        lock = take(path, wait=True)
    assert lock is not None  # it was waited for
    try:
        yield
    finally:
        lock.release(remove=True)


def lock_path(place: Path) -> Path:
    """The file to lock before a file or folder is written: `.NAME.lock` beside it."""
    return beside(place, "lock")


def beside(place: Path, ending: str) -> Path:
    """A hidden path beside a file or folder: `.NAME.ENDING`; a very long name is cut and hashed."""
    name = place.name
    if len(os.fsencode(name)) > _NAME_BYTES:
        digest = hashlib.sha256(os.fsencode(name)).hexdigest()[:12]
        name = f"{os.fsencode(name)[:_NAME_BYTES].decode(errors='ignore')}-{digest}"
    return place.parent / f".{name}.{ending}"


def _open(path: Path) -> FileIO:
    try:
        return FileIO(path, "r+", opener=lambda name, _: os.open(name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666))
    except PermissionError:
        return FileIO(path, "r")  # another user's: it can be locked all the same


def _flock(file: FileIO, mode: int) -> bool:
    """Whether the file is locked now, or can't be locked by anyone."""
    try:
        fcntl.flock(file, mode)
    except BlockingIOError:
        return False
    except OSError as error:
        _warn(Path(str(file.name)).parent, error)
    return True


def _warn(folder: Path, error: OSError) -> None:
    """Say once in a process, and by the first of a launch, that nothing is guarded."""
    global _has_warned
    if not _has_warned and os.environ.get("RANK", "0") == "0":
        print(
            f"warning: {folder} is on a file system without locks ({error.strerror}): see to it that no two commands "
            "write the same output at once",
            file=sys.stderr,
            flush=True,
        )
    _has_warned = True


def _is_at(path: Path, file: FileIO) -> bool:
    """Whether an open file is still the one at its path."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), os.stat(path))
    except FileNotFoundError:
        return False


def _let_go_in_fork() -> None:
    """Close a forked process's copies; its parent keeps the locks."""
    for file in list(_files):
        file.close()


os.register_at_fork(after_in_child=_let_go_in_fork)

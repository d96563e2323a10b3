"""Locks on the outputs of a command. A second command that writes one is refused, with the holder's name."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import socket
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

from reflectune.core.errors import DISK_FULL, UserError
from reflectune.core.launch_variables import rank
from reflectune.core.locking import lock_path, remove, take
from reflectune.core.partials import remove_partials


@dataclass(frozen=True)
class _HeldOutput:
    lock: FileLock
    made: list[Path]
    """Folders that were made for the lock file."""


_held: dict[Path, _HeldOutput] = {}


def hold(*outputs: str | Path, unless: bool = False) -> None:
    """Keep other commands from writing these files or folders until this one ends, and delete partial files in them.

    In a launch the first process holds them for all: the others write nothing before they have joined its group. Call
    it as soon as the config is read; `entry_point` releases them.

    Args:
        outputs: Files and folders that the command writes; "" is skipped. Their lock files lie next to them.
        unless: True to lock nothing, e.g. in a dry run.

    Raises:
        UserError: Another command writes one of them, or it can't be written.
    """
    for output in () if unless or rank() else filter(None, map(str, outputs)):
        try:
            path = Path(os.path.realpath(output))
            if path not in _held:
                _held[path] = _hold(output, path)
        except OSError as error:
            if error.errno in DISK_FULL:
                raise
            reason = f"{error.strerror}: {error.filename}"
            raise UserError(f"{output} can't be written ({reason}); choose another output") from error


def release_outputs() -> None:
    """Release all outputs that this process holds."""
    while _held:
        _, held = _held.popitem()
        remove(held.lock)
        with contextlib.suppress(OSError):
            for folder in held.made:
                folder.rmdir()  # fails if something was written


def _hold(output: str, path: Path) -> _HeldOutput:
    made = [folder for folder in path.parents if not folder.exists()]
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        lock = _take(output, lock_path(path))
    except OSError as error:
        # A mounted volume: the folder may be writable where its parent isn't.
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS) or not path.is_dir():
            raise
        lock = _take(output, path / ".lock")
    remove_partials(path)
    return _HeldOutput(lock, made)


def _take(output: str, path: Path) -> FileLock:
    lock = take(path)
    if lock is None:
        holder = ""
        with contextlib.suppress(OSError, UnicodeDecodeError):
            holder = path.read_text(encoding="utf-8")
        fix = "wait for it, or stop it; then the same command goes on"
        raise UserError(f"{output} is being written by {holder or 'another process'}; {fix}")
    since = time.strftime("%Y-%m-%d %H:%M")
    path.write_text(f"PID {os.getpid()} on {socket.gethostname()} since {since} ({_command()})", encoding="utf-8")
    return lock


def _command() -> str:
    """Return the command and its config file, e.g. `reflectune sft --config a.yaml`; other settings may be secret."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    command = f"python -m {spec.name}" if spec else f"python {sys.argv[0]}"
    if command == "python -m reflectune.__main__" or Path(sys.argv[0]).name == "reflectune":
        command = " ".join(["reflectune", *itertools.takewhile(lambda word: not word.startswith("-"), sys.argv[1:3])])
    words = [part for word in sys.argv for part in (word.split("=", 1) if word.startswith("--config=") else [word])]
    following = dict(itertools.pairwise(words))
    return f"{command} --config {following['--config']}" if "--config" in following else command


os.register_at_fork(after_in_child=_held.clear)

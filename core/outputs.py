"""Locks on what a command writes: a second command is told who holds an output, and takes it over from the dead."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from reflectune.core.errors import UserError
from reflectune.core.launching import SIZES
from reflectune.core.locking import Lock, lock_path, take
from reflectune.core.partials import remove_partials

_POLL: Final = 0.05
_GRACE: Final = 2.0
"""Seconds that a process which has just taken a lock may need to write down who it is."""


@dataclass(frozen=True)
class Holder:
    """A process that writes an output, as its lock file has it.

    Attributes:
        pid: Its number.
        born: When it began, in the kernel's ticks, since numbers are used again; "" where that can't be told.
        host: The machine.
        since: When it took the lock, in seconds since 1970.
        command: The command, without settings: they may hold a password.
        launch: The address, port, run and size of the launch that it belongs to; "" for a process by itself.
        parent: The process that started it, with its birth.
    """

    pid: int
    born: str
    host: str
    since: float
    command: str
    launch: str
    parent: str

    @property
    def is_dead(self) -> bool:
        """Whether it is known to have ended."""
        return self.host == socket.gethostname() and _birth(self.pid) != self.born

    def is_of_launch(self, other: Holder) -> bool:
        """Whether one launcher started both; on other machines its agents have the same address and port."""
        same_name = bool(self.launch) and self.launch == other.launch
        return same_name and (self.host != other.host or self.parent == other.parent)


@dataclass(frozen=True)
class _Held:
    lock: Lock
    made: list[Path]
    """Folders that were made for the lock file."""


_held: dict[Path, _Held] = {}


def hold(*outputs: str | Path, unless: bool = False) -> None:
    """Keep other commands from writing these files or folders until this one ends, and delete partial files in them.

    The processes of a launch hold an output together: as long as one of them lives, no other command gets it. To be
    called as soon as the config is read; `entry_point` lets go.

    Args:
        outputs: Files and folders that the command writes; "" is left out. The lock is a file beside each.
        unless: Whether to hold nothing, e.g. in a dry run.

    Raises:
        UserError: Another command writes one of them, or it can't be written.
    """
    for output in () if unless else filter(None, map(str, outputs)):
        try:
            place = Path(os.path.realpath(output))
            if place not in _held:
                _held[place] = _hold(output, place)
        except (OSError, ValueError) as error:
            if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise
            reason = f"{error.strerror}: {error.filename}" if isinstance(error, OSError) else str(error)
            raise UserError(f"{output} can't be written ({reason}); choose another output") from error


def release_outputs() -> None:
    """Let other commands have what this process holds."""
    while _held:
        _, held = _held.popitem()
        held.lock.release(remove=True)
        with contextlib.suppress(OSError):
            for folder in held.made:
                folder.rmdir()  # an error before anything was written leaves nothing


def _hold(output: str, place: Path) -> _Held:
    made = [folder for folder in place.parents if not folder.exists()]
    place.parent.mkdir(parents=True, exist_ok=True)
    try:
        return _Held(_take(output, place, lock_path(place)), made)
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS) or not place.is_dir():
            raise
    return _Held(_take(output, place, place / ".lock"), made)  # the folder may be written, and the one around it not


def _take(output: str, place: Path, path: Path) -> Lock:
    """Lock an output by itself, or with the others of the launch."""
    me, deadline = _myself(), time.monotonic() + _GRACE
    while True:
        if (lock := take(path)) is not None:
            lock.append(_as_line(me), clear=True)
            remove_partials(place)
            if not me.launch or lock.share():
                return lock
        holders = _read(path)
        if any(holder.is_of_launch(me) for holder in holders):
            if (lock := take(path, shared=True)) is not None:
                lock.append(_as_line(me))
                return lock
        elif any(not holder.is_dead for holder in holders) or time.monotonic() > deadline:
            raise UserError(_refusal(output, holders))
        time.sleep(_POLL)


def _refusal(output: str, holders: list[Holder]) -> str:
    fix = "wait for it, or stop it; then the same command goes on"
    living = [holder for holder in holders if not holder.is_dead]
    if not living:
        return f"{output} is being written by another process; {fix}"
    first = living[0]
    pids = ", ".join(str(holder.pid) for holder in living if holder.host == first.host)
    today = time.strftime("%Y-%m-%d") == time.strftime("%Y-%m-%d", time.localtime(first.since))
    since = time.strftime("%H:%M" if today else "%Y-%m-%d %H:%M", time.localtime(first.since))
    return f"{output} is being written by PID {pids} on {first.host} since {since} ({first.command}); {fix}"


def _read(path: Path) -> list[Holder]:
    """Who is said to hold a lock; a line that is just being written is left out."""
    holders = []
    with contextlib.suppress(OSError):
        for line in path.read_bytes().splitlines():
            with contextlib.suppress(ValueError, TypeError):
                holders.append(Holder(**json.loads(line)))
    return holders


def _as_line(holder: Holder) -> bytes:
    return json.dumps(asdict(holder)).encode() + b"\n"


def _myself() -> Holder:
    environment = os.environ
    size = next((environment[name] for name in SIZES if name in environment), "1")
    names = [size, *(environment.get(name, "") for name in ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID"))]
    parent = os.getppid()
    return Holder(
        os.getpid(),
        _birth(os.getpid()),
        socket.gethostname(),
        time.time(),
        _command(),
        " ".join(names) if size != "1" else "",
        f"{parent} {_birth(parent)}",
    )


def _command() -> str:
    """The command and its config file."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    command = f"python -m {spec.name}" if spec else f"python {sys.argv[0]}"
    following = dict(zip(sys.argv, sys.argv[1:], strict=False))
    return f"{command} --config {following['--config']}" if "--config" in following else command


def _birth(pid: int) -> str:
    """When a process began; "" if there is none, or where `/proc` isn't."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else fields[19]


os.register_at_fork(after_in_child=_held.clear)

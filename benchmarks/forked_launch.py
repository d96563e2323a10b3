"""Launches a script by `accelerate launch` with forks of this process, which has imported the libraries already.

Importing takes longer than all that a small launch does. The launcher is a fork; it starts a stand-in for Python, which
has this process fork one that runs the script. Each ends as a program does, with all that the interpreter does then.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import runpy
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from accelerate.commands import launch

STAND_IN = """#!{python} -SI
import json, os, socket, sys
server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
server.connect({address!r})
asked = {{"argv": [part for part in sys.argv[1:] if part != "-u"], "environment": dict(os.environ)}}
socket.send_fds(server, [json.dumps(asked).encode()], [1, 2])
status = int(server.recv(16))
if status < 0:
    os.kill(os.getpid(), -status)
sys.exit(status)
"""
"""What torchrun starts in Python's place: it asks for a fork, and ends as that does."""


class Launcher:
    """Launches, one at a time.

    Args:
        folder: Where the stand-in for Python and its way here are written.
        environment: What a launch finds in its environment beside this process's.
        limit: Seconds after which a launch is ended.
    """

    def __init__(self, folder: Path, environment: Mapping[str, str], limit: float) -> None:
        self._listener, address = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET), folder / "socket"
        address.unlink(missing_ok=True)
        self._listener.bind(str(address))
        self._listener.listen()
        stand_in = folder / "python"
        stand_in.write_text(STAND_IN.format(python=sys.executable, address=str(address)), encoding="utf-8")
        stand_in.chmod(0o755)
        self._environment, self._limit = {**environment, "PYTHON_EXEC": str(stand_in)}, limit

    def run(self, arguments: Sequence[str], folder: Path, first: Callable[[], None]) -> tuple[list[int], bool]:
        """Launch once.

        Args:
            arguments: What follows `accelerate launch`.
            folder: Where the launcher's `stdout` and `stderr` are written.
            first: What each process does before it runs the script.

        Returns:
            Exit statuses in the order in which the processes ended, negative for a signal; whether it hung.
        """
        began, hung = time.monotonic(), False
        statuses: list[int] = []
        sys.stdout.flush()
        if (launcher := os.fork()) == 0:
            self._be_launcher(arguments, folder)
        running: dict[int, socket.socket | None] = {launcher: None}
        while running:
            asking = [stand_in for stand_in in running.values() if stand_in]
            for ready in select.select([self._listener, *asking], [], [], 0.02)[0]:
                if ready is self._listener:
                    stand_in, _ = self._listener.accept()
                    running[_fork_process(stand_in, first)] = stand_in
                else:  # torchrun has ended the stand-in
                    os.kill(next(process for process, stand_in in running.items() if stand_in is ready), signal.SIGTERM)
            if not hung and time.monotonic() - began > self._limit:
                hung = True
                for process in running:
                    os.kill(process, signal.SIGABRT)  # it writes its stack down
            process, status = os.waitpid(-1, os.WNOHANG)
            if process:
                statuses.append(os.waitstatus_to_exitcode(status))
                if (told := running.pop(process)) is not None:
                    with contextlib.suppress(OSError):
                        told.send(str(statuses[-1]).encode())
                    told.close()
        return statuses, hung

    def _be_launcher(self, arguments: Sequence[str], folder: Path) -> NoReturn:
        _redirect([os.open(folder / name, os.O_WRONLY | os.O_CREAT) for name in ("stdout", "stderr")])
        os.environ.update(self._environment)
        sys.argv = ["accelerate-launch", *arguments]
        launch.main()
        sys.exit(0)


def _fork_process(stand_in: socket.socket, first: Callable[[], None]) -> int:
    message, files, _, _ = socket.recv_fds(stand_in, 1 << 20, 2)
    process = os.fork()
    if process == 0:
        _be_process(json.loads(message), files, first)
    for file in files:
        os.close(file)
    return process


def _be_process(asked: Mapping, files: Sequence[int], first: Callable[[], None]) -> NoReturn:
    _redirect(files)
    faulthandler.enable()
    os.environ.clear()
    os.environ.update(asked["environment"])
    first()
    sys.argv = asked["argv"]
    runpy.run_path(sys.argv[0], run_name="__main__")
    sys.exit(0)


def _redirect(files: Sequence[int]) -> None:
    for number, file in enumerate(files, 1):
        os.dup2(file, number)

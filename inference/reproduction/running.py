"""Runs the steps of a reproduction in order, each as the command that a person would type."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from reflectune.core.errors import UserError
from reflectune.core.launching import alone
from reflectune.core.rejected import ROWS_LEFT_OUT
from reflectune.inference.reproduction import records
from reflectune.inference.reproduction.status import READY, Status, statuses
from reflectune.inference.reproduction.steps import DOWNLOAD, Step

_LAST: Final = 15
"""Lines of a command that failed to show."""
_GIGA: Final = 1e9


def run(steps: Sequence[Step], every: Sequence[Step], data: Path, logs: Path, redo: Sequence[str] = ()) -> None:
    """Run what isn't done, in order; after an error or a kill the same call goes on.

    Args:
        steps: Those to run.
        every: All of the list.
        data: The folder that their paths start from.
        logs: The folder for what each prints.
        redo: Steps whose output is moved aside first.

    Raises:
        UserError: A step can't begin, has no room on the disk, or ended with an error: the message has its last lines.
    """
    for step in steps:
        if step.name in redo:
            move_aside(step, data)
    for step in steps:
        (status,) = statuses([step], data, every)
        if status.state == "done":
            print(f"== {step.name}: done", flush=True)
        elif status.state not in READY:
            raise UserError(f"{step.name} can't be run: {status.why}")
        else:
            _run_step(status, data, logs)
            _check_done(step, every, data)


def move_aside(step: Step, data: Path) -> None:
    """Move a step's output, and its record, to NAME.before; what an earlier call moved there gets a number.

    Raises:
        UserError: The step has no output.
    """
    if not step.output:
        raise UserError(f"`redo`: {step.name} has no output of its own")
    for path in (data / step.output, records.record_path(step, data)):
        if path.exists():
            names = (path.with_name(f"{path.name}.before{number or ''}") for number in range(10_000))
            path.rename(next(name for name in names if not name.exists()))


def check_room(step: Step, data: Path) -> None:
    """Refuse a step whose output the disk has no room for, what is there of it already included.

    Raises:
        UserError: Says how much is needed, and how much there is.
    """
    place = data / step.output
    there = sum(path.stat().st_size for path in place.rglob("*") if path.is_file()) if place.is_dir() else 0
    existing = next(folder for folder in (place, *place.parents) if folder.exists())
    free = shutil.disk_usage(existing).free
    if step.gigabytes * _GIGA - there > free:
        raise UserError(
            f"{step.name} writes about {step.gigabytes:,.3g} GB to {place}, and {free / _GIGA:,.3g} GB are free there; "
            "free some, put another disk there by a link, or give `room` in your changes if your data are fewer"
        )


def _run_step(status: Status, data: Path, logs: Path) -> None:
    step = status.step
    check_room(step, data)
    record = records.begin(step, data) if step.module != DOWNLOAD else None
    log = logs / f"{step.name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    print(f"== {step.name} ({status.state}): {step.shown()}", flush=True)
    start = time.monotonic()
    last: deque[str] = deque(maxlen=_LAST)
    with (
        log.open("a", encoding="utf-8") as file,
        subprocess.Popen(
            step.command(),
            cwd=data,
            env=alone(os.environ),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        ) as process,
    ):
        for line in process.stdout or ():
            file.write(line)
            print(line, end="", flush=True)
            last.append(line)
    if process.returncode not in (0, ROWS_LEFT_OUT):
        told = "".join(last).rstrip()
        moved = f"; `--redo {step.name}` moves aside what was made before" if status.state == "stale" else ""
        raise UserError(f"{step.name} ended with status {process.returncode}{moved}; all is in {log}:\n{told}")
    if record is not None:
        records.end(step, data, record, time.monotonic() - start)


def _check_done(step: Step, every: Sequence[Step], data: Path) -> None:
    (status,) = statuses([step], data, every)
    if status.state != "done":
        raise UserError(f"{step.name} ended well, and is {status.state}: {status.why}")
    print(f"== {step.name}: done, {status.why}", flush=True)

"""Which checkpoint a run goes on from: the last one that was written whole, by a run with the same settings."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from reflectune.core.durable import read_json, write_json
from reflectune.core.errors import UserError

RECORD = "run.json"
"""The file that is written last into a folder: a folder without it was cut off while it was written."""


def mark_whole(folder: str | Path, settings: Mapping[str, Any], step: int) -> None:
    """Record that everything in a checkpoint's folder is on the disk, and what run it belongs to."""
    write_json(Path(folder, RECORD), {"step": step, "settings": dict(settings)})


def last_whole_checkpoint(output_dir: str | Path, settings: Mapping[str, Any]) -> Path | None:
    """The newest whole checkpoint of a run, or None if there is none yet.

    Raises:
        UserError: It belongs to a run with other settings.
    """
    newest = _newest_whole(output_dir)
    if newest is not None:
        _check_settings(newest, settings)
    return newest


def recorded_settings(output_dir: str | Path) -> dict[str, Any] | None:
    """The settings of the run in a folder, finished or not; None if there is none yet."""
    folder = Path(output_dir) if Path(output_dir, RECORD).is_file() else _newest_whole(output_dir)
    return read_json(folder / RECORD, "the record of the run")["settings"] if folder else None


def is_finished(output_dir: str | Path, settings: Mapping[str, Any]) -> bool:
    """Whether the run with these settings has written its final weights.

    Raises:
        UserError: A run with other settings has.
    """
    if not Path(output_dir, RECORD).is_file():
        return False
    _check_settings(Path(output_dir), settings)
    return True


def refuse_occupied(output_dir: str | Path) -> None:
    """Raise a `UserError` if a folder holds a run already."""
    occupied = [folder for folder in (*checkpoint_folders(output_dir), Path(output_dir)) if (folder / RECORD).is_file()]
    if occupied:
        raise UserError(
            f"{occupied[0]} holds a run already and `resume` is off; choose another `output_dir`, or delete it first"
        )


def refuse_full_disk(folder: str | Path, needed: int) -> None:
    """Raise a `UserError` if a checkpoint of that many bytes would not fit: nothing is half written."""
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise UserError(
            f"a checkpoint needs about {needed / 2**30:.2f} GiB, and {folder} has {free / 2**30:.2f} GiB left; free "
            "some and run the same command again: it goes on from the last checkpoint"
        )


def keep_newest(output_dir: str | Path, count: int) -> None:
    """Delete all but the newest `count` whole checkpoints, and older ones that were cut off."""
    folders = checkpoint_folders(output_dir)
    whole = [folder for folder in folders if (folder / RECORD).is_file()]
    for folder in folders[: folders.index(whole[-count])] if len(whole) >= count else []:
        # The record goes first, so that a folder cut off while it is deleted is never taken for a whole one.
        (folder / RECORD).unlink(missing_ok=True)
        shutil.rmtree(folder)


def checkpoint_folders(output_dir: str | Path) -> list[Path]:
    """The folders `checkpoint-<step>`, complete or not, in order of step."""
    folder_by_step = {}
    for folder in Path(output_dir).glob(f"{PREFIX_CHECKPOINT_DIR}-*"):
        step = folder.name.removeprefix(f"{PREFIX_CHECKPOINT_DIR}-")
        if folder.is_dir() and step.isdecimal():
            folder_by_step[int(step)] = folder
    return [folder_by_step[step] for step in sorted(folder_by_step)]


def _newest_whole(output_dir: str | Path) -> Path | None:
    whole = [folder for folder in checkpoint_folders(output_dir) if (folder / RECORD).is_file()]
    return whole[-1] if whole else None


def _check_settings(folder: Path, settings: Mapping[str, Any]) -> None:
    there = read_json(folder / RECORD, "the record of the run")["settings"]
    differing = [name for name in (*settings, *(set(there) - set(settings))) if there.get(name) != settings.get(name)]
    if differing:
        values = "; ".join(f"`{name}` is {settings.get(name)!r}, was {there.get(name)!r}" for name in differing)
        raise UserError(
            f"{folder} belongs to a run with other settings: {values}. Restore them, or choose another `output_dir`"
        )

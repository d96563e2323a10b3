"""Which checkpoint a run goes on from: the last one that was written whole, by a run with the same settings."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from reflectune.core.durable import read_json, write_json
from reflectune.core.errors import UserError
from reflectune.train.saving.damage import damage_of, file_sizes

RECORD = "run.json"
"""The file that is written last into a folder: a folder without it was cut off while it was written."""
_FILES = "files"
"""In a checkpoint's record: the bytes of each file."""


def mark_whole(folder: str | Path, settings: Mapping[str, Any], step: int) -> None:
    """Record that everything in a checkpoint's folder is on the disk, and what run it belongs to."""
    write_json(Path(folder, RECORD), {"step": step, "settings": dict(settings)})


def mark_checkpoint_whole(folder: str | Path, settings: Mapping[str, Any], step: int) -> None:
    """As `mark_whole`, with the size of each file, by which one that is cut or lost later is found."""
    record = {"step": step, "settings": dict(settings), _FILES: file_sizes(Path(folder))}
    write_json(Path(folder, RECORD), record)


def last_whole_checkpoint(
    output_dir: str | Path, settings: Mapping[str, Any], *, discard: bool = False, say: Callable[[str], None] = print
) -> Path | None:
    """The newest whole checkpoint of a run, or None if there is none yet; one with a damaged file is passed over.

    Args:
        output_dir: The run's.
        settings: What determines the run.
        discard: Take damaged ones for ones that were cut off while they were written, now and later. One process of a
            launch does it.
        say: Takes a line about those that are passed over.

    Raises:
        UserError: It belongs to a run with other settings; or there are whole ones, and all have damaged files.
    """
    problems = []
    for folder in reversed(_whole_checkpoints(output_dir)):
        if problem := _unreadable_record(folder):
            problems.append(f"{folder}: {problem}")
            continue
        _check_settings(folder, settings)
        record = read_json(folder / RECORD, "the record of the run")
        problem = damage_of(folder, record.get(_FILES))
        if not problem:
            if problems:
                say(f"{'; '.join(problems)}: going on from the checkpoint before, {folder}")
            for damaged in _whole_checkpoints(output_dir)[-len(problems) :] if problems and discard else []:
                (damaged / RECORD).unlink(missing_ok=True)
            return folder
        problems.append(f"{folder}: {problem}")
    if problems:
        raise UserError(
            f"{'; '.join(problems)}; there is no whole checkpoint before it to go on from: restore the file, or delete "
            f"{output_dir} to train from the beginning"
        )
    return None


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


def _whole_checkpoints(output_dir: str | Path) -> list[Path]:
    """Those that were written to their end, in order of step."""
    return [folder for folder in checkpoint_folders(output_dir) if (folder / RECORD).is_file()]


def _newest_whole(output_dir: str | Path) -> Path | None:
    whole = [folder for folder in _whole_checkpoints(output_dir) if not _unreadable_record(folder)]
    return whole[-1] if whole else None


def _unreadable_record(folder: Path) -> str:
    """What is wrong with a checkpoint's record, in words; "" if it can be read."""
    try:
        record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        return f"{RECORD} is damaged ({error})"
    is_whole = isinstance(record, dict) and isinstance(record.get("settings"), dict)
    return "" if is_whole else f"{RECORD} has no settings"


def _check_settings(folder: Path, settings: Mapping[str, Any]) -> None:
    there = read_json(folder / RECORD, "the record of the run")["settings"]
    differing = [name for name in (*settings, *(set(there) - set(settings))) if there.get(name) != settings.get(name)]
    if differing:
        values = "; ".join(f"`{name}` is {settings.get(name)!r}, was {there.get(name)!r}" for name in differing)
        raise UserError(
            f"{folder} belongs to a run with other settings: {values}. Restore them, or choose another `output_dir`"
        )

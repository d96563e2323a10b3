"""Checkpoints of a run: which is complete, which is damaged, and which is the best."""

from __future__ import annotations

import json
import os
import shutil
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from safetensors import SafetensorError, safe_open
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from reflectune.core.durable import read_json, sync, write_json
from reflectune.core.errors import UserError

RECORD = "run.json"
"""File written last into a checkpoint; a folder without it is incomplete."""
BEST = "best"
"""Folder in `output_dir` with the best weights so far."""
STARTED_FROM = "started_from"
"""Key of the final checkpoint's record: the files of the initial model."""
_FILES = "files"
"""Key of a checkpoint's record: the size of each file."""
_PICKLED: Final = (".bin", ".pt", ".pth")
_READ_WHOLE: Final = 1 << 30
"""Bytes. For larger archives only the directory is read, which a truncated archive lacks."""


def mark_complete(
    folder: str | Path, settings: Mapping[str, Any], step: int, *, sizes: bool = False, started_from: Any = None
) -> None:
    """Flush a checkpoint's files to the disk, then write its record, which marks it as complete.

    With `sizes`, the record has the size of each file, to detect files that are truncated or lost later.
    """
    folder = Path(folder)
    record = {"step": step, "settings": dict(settings), **({_FILES: file_sizes(folder)} if sizes else {})}
    record |= {} if started_from is None else {STARTED_FROM: started_from}
    sync(folder)
    write_json(folder / RECORD, record)
    sync(folder)


def last_complete_checkpoint(output_dir: str | Path, settings: Mapping[str, Any]) -> Path | None:
    """Find the newest complete and undamaged checkpoint of a run; None if there is none yet.

    Newer damaged ones are marked as incomplete. Only one process of a launch may call this.

    Args:
        settings: Everything that determines the weights.

    Raises:
        UserError: It belongs to a run with other settings, or all complete checkpoints have damaged files.
    """
    problems = []
    for folder in reversed(_complete_checkpoints(output_dir)):
        if problem := _unreadable_record(folder):
            problems.append(f"{folder}: {problem}")
            continue
        _check_settings(folder, settings)
        record = read_json(folder / RECORD, "the record of the run")
        problem = damage_of(folder, record[_FILES])
        if not problem:
            if problems:
                print(f"{'; '.join(problems)}: resuming from the previous checkpoint, {folder}", flush=True)
                for damaged in _complete_checkpoints(output_dir)[-len(problems) :]:
                    (damaged / RECORD).unlink(missing_ok=True)
            return folder
        problems.append(f"{folder}: {problem}")
    if problems:
        raise UserError(
            f"{'; '.join(problems)}; no undamaged checkpoint is left to resume from: restore the file, or "
            f"delete {output_dir} to train from the beginning"
        )
    return None


def recorded_settings(output_dir: str | Path) -> dict[str, Any] | None:
    """Read the settings of the run in a folder, finished or not; None if there is none yet."""
    complete = [folder for folder in _complete_checkpoints(output_dir) if not _unreadable_record(folder)]
    folder = Path(output_dir) if Path(output_dir, RECORD).is_file() else next(reversed(complete), None)
    return read_json(folder / RECORD, "the record of the run")["settings"] if folder else None


def final_record(output_dir: str | Path) -> dict[str, Any]:
    """Return the record of the final checkpoint in a folder; {} if there is none yet."""
    path = Path(output_dir, RECORD)
    return read_json(path, "the record of the run") if path.is_file() else {}


def is_finished(output_dir: str | Path, settings: Mapping[str, Any]) -> bool:
    """Return True if the run with these settings has written its final weights.

    Raises:
        UserError: The folder holds the final weights of a run with other settings.
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
    """Raise a `UserError` if a checkpoint of that many bytes does not fit on the disk."""
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise UserError(
            f"a checkpoint needs about {needed / 2**30:.2f} GiB, and {folder} has {free / 2**30:.2f} GiB left; free "
            "some and run the same command again: it resumes from the last checkpoint"
        )


def keep_newest(output_dir: str | Path, count: int) -> None:
    """Delete all folders that are older than the newest `count` complete checkpoints."""
    folders = checkpoint_folders(output_dir)
    complete = _complete_checkpoints(output_dir)
    if len(complete) < count:
        return
    for folder in folders[: folders.index(complete[-count])]:
        # The record is deleted first, so that a half-deleted folder never counts as complete.
        (folder / RECORD).unlink(missing_ok=True)
        shutil.rmtree(folder)


def checkpoint_folders(output_dir: str | Path) -> list[Path]:
    """Return the folders `checkpoint-<step>`, complete or not, in order of step."""
    folder_by_step = {}
    for folder in Path(output_dir).glob(f"{PREFIX_CHECKPOINT_DIR}-*"):
        step = folder.name.removeprefix(f"{PREFIX_CHECKPOINT_DIR}-")
        if folder.is_dir() and step.isdecimal():
            folder_by_step[int(step)] = folder
    return [folder_by_step[step] for step in sorted(folder_by_step)]


def _complete_checkpoints(output_dir: str | Path) -> list[Path]:
    """Return complete checkpoints in order of step."""
    return [folder for folder in checkpoint_folders(output_dir) if (folder / RECORD).is_file()]


def _unreadable_record(folder: Path) -> str:
    try:
        record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        return f"{RECORD} is damaged ({error})"
    missing = [
        key for key in ("settings", _FILES) if not isinstance(record, dict) or not isinstance(record.get(key), dict)
    ]
    return f"{RECORD} has no {' and no '.join(missing)}" if missing else ""


def _check_settings(folder: Path, settings: Mapping[str, Any]) -> None:
    recorded = read_json(folder / RECORD, "the record of the run")["settings"]
    names = (*settings, *(set(recorded) - set(settings)))
    differing = [name for name in names if recorded.get(name) != settings.get(name)]
    if differing:
        values = "; ".join(f"`{name}` is {settings.get(name)!r}, was {recorded.get(name)!r}" for name in differing)
        raise UserError(
            f"{folder} belongs to a run with other settings: {values}. Restore them, or choose another `output_dir`"
        )


def file_sizes(folder: Path) -> dict[str, int]:
    """Return the size of every file of a folder in bytes, by its path below it."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.stat().st_size for path in files}


def damage_of(folder: Path, written: Mapping[str, int]) -> str:
    """Describe the damage to a checkpoint's files; "" if none is found.

    Args:
        folder: The checkpoint.
        written: Size of each file when it was written, in bytes.
    """
    sizes = file_sizes(folder)
    for name, size in written.items():
        if name not in sizes:
            return f"{name} is missing"
        if sizes[name] != size:
            return f"{name} has {sizes[name]:,} bytes, and {size:,} were written"
    for name in sizes:
        if problem := _problem_of(folder / name):
            return f"{name} {problem}"
    return ""


def _problem_of(path: Path) -> str:
    try:
        if path.suffix == ".safetensors":
            with safe_open(path, framework="numpy"):
                return ""  # opening checks the header and the file's length
        if path.suffix in _PICKLED:
            with zipfile.ZipFile(path) as archive:
                changed = archive.testzip() if path.stat().st_size <= _READ_WHOLE else None
                return f"was changed: the checksum of {changed} differs" if changed else ""
        if path.name == TRAINER_STATE_NAME:
            state = json.loads(path.read_text(encoding="utf-8"))
            is_valid = isinstance(state, dict) and isinstance(state.get("global_step"), int)
            return "" if is_valid else "has no `global_step`"
    except (OSError, ValueError, SafetensorError, zipfile.BadZipFile, NotImplementedError) as error:
        return f"is damaged ({error})"
    return ""


def is_patience_exhausted(
    history: Sequence[Mapping[str, Any]], metric: str, best_step: int, patience: int | None
) -> bool:
    """Return True if `patience` validations have passed since the best one.

    All arguments are saved in checkpoints, so a resumed run stops at the same step as an uninterrupted one.

    Args:
        history: Rows of the log, each with its `step`; those of a validation have `eval_<metric>`.
        metric: The metric that selects the weights.
        best_step: Step of the best validation.
        patience: Validations without a better one before training stops; None for any number.
    """
    later = [row for row in history if f"eval_{metric}" in row and row["step"] > best_step]
    return patience is not None and len(later) >= patience


def has_stopped_early(checkpoint: Path, metric: str, patience: int | None) -> bool:
    """Return True if early stopping ended the run at this checkpoint: nothing is left to train."""
    if patience is None:
        return False
    state = read_json(checkpoint / TRAINER_STATE_NAME, "the trainer's state")
    return is_patience_exhausted(state["log_history"], metric, state["best_global_step"] or 0, patience)


def replace_best(partial: Path, output_dir: Path, settings: Mapping[str, Any], step: int) -> None:
    """Replace the best checkpoint with the one in `partial`. A run killed here writes it again after it is resumed."""
    mark_complete(partial, settings, step)
    best = output_dir / BEST
    if best.exists():
        (best / RECORD).unlink(missing_ok=True)
        shutil.rmtree(best)
    os.replace(partial, best)


def finish_with_best(output_dir: Path) -> None:
    """Put the best checkpoint's files into `output_dir`, as hard links if the file system supports them."""
    best = output_dir / BEST
    for path in best.iterdir():
        if path.name != RECORD:
            (output_dir / path.name).unlink(missing_ok=True)
            _link(path, output_dir / path.name)


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)

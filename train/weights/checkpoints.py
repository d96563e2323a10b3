"""Checkpoints of a run: the one to resume from, damage to their files, and the best one."""

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
"""The file that is written last into a folder; a folder without it is incomplete."""
BEST = "best"
"""The folder in `output_dir` that holds the best weights so far."""
STARTED_FROM = "started_from"
"""In the final checkpoint's record: the files of the model that the run started from."""
_FILES = "files"
"""In a checkpoint's record: the bytes of each file."""
_PICKLED: Final = (".bin", ".pt", ".pth")
_READ_WHOLE: Final = 1 << 30
"""Bytes. Of larger archives only the directory is read, which a cut one lacks."""


def mark_whole(
    folder: str | Path, settings: Mapping[str, Any], step: int, *, sizes: bool = False, started_from: Any = None
) -> None:
    """Write a checkpoint's files to the disk, then record that it is complete, with the run that it belongs to.

    With `sizes`, the size of each file is recorded, to detect files that are cut or lost later.
    """
    folder = Path(folder)
    record = {"step": step, "settings": dict(settings), **({_FILES: file_sizes(folder)} if sizes else {})}
    record |= {} if started_from is None else {STARTED_FROM: started_from}
    sync(folder)
    write_json(folder / RECORD, record)
    sync(folder)


def last_whole_checkpoint(output_dir: str | Path, settings: Mapping[str, Any]) -> Path | None:
    """Find the newest whole checkpoint of a run; None if there is none yet. Newer damaged ones are marked incomplete.

    One process of a launch calls it.

    Args:
        settings: Everything that determines the weights.

    Raises:
        UserError: It belongs to a run with other settings, or all whole checkpoints have damaged files.
    """
    problems = []
    for folder in reversed(_whole_checkpoints(output_dir)):
        if problem := _unreadable_record(folder):
            problems.append(f"{folder}: {problem}")
            continue
        _check_settings(folder, settings)
        record = read_json(folder / RECORD, "the record of the run")
        problem = damage_of(folder, record[_FILES])
        if not problem:
            if problems:
                print(f"{'; '.join(problems)}: resuming from the checkpoint before, {folder}", flush=True)
                for damaged in _whole_checkpoints(output_dir)[-len(problems) :]:
                    (damaged / RECORD).unlink(missing_ok=True)
            return folder
        problems.append(f"{folder}: {problem}")
    if problems:
        raise UserError(
            f"{'; '.join(problems)}; no whole checkpoint is left to resume from: restore the file, or "
            f"delete {output_dir} to train from the beginning"
        )
    return None


def recorded_settings(output_dir: str | Path) -> dict[str, Any] | None:
    """Read the settings of the run in a folder, finished or not; None if there is none yet."""
    whole = [folder for folder in _whole_checkpoints(output_dir) if not _unreadable_record(folder)]
    folder = Path(output_dir) if Path(output_dir, RECORD).is_file() else next(reversed(whole), None)
    return read_json(folder / RECORD, "the record of the run")["settings"] if folder else None


def final_record(output_dir: str | Path) -> dict[str, Any]:
    """Return the record of the final checkpoint in a folder; {} if there is none yet."""
    path = Path(output_dir, RECORD)
    return read_json(path, "the record of the run") if path.is_file() else {}


def is_finished(output_dir: str | Path, settings: Mapping[str, Any]) -> bool:
    """Return True if the run with these settings has written its final weights.

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
    """Raise a `UserError` if a checkpoint of that many bytes does not fit on the disk."""
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise UserError(
            f"a checkpoint needs about {needed / 2**30:.2f} GiB, and {folder} has {free / 2**30:.2f} GiB left; free "
            "some and run the same command again: it resumes from the last checkpoint"
        )


def keep_newest(output_dir: str | Path, count: int) -> None:
    """Delete all but the newest `count` whole checkpoints, and older incomplete ones."""
    folders = checkpoint_folders(output_dir)
    whole = [folder for folder in folders if (folder / RECORD).is_file()]
    for folder in folders[: folders.index(whole[-count])] if len(whole) >= count else []:
        # The record goes first, so that a half-deleted folder is never taken for a whole checkpoint.
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


def _whole_checkpoints(output_dir: str | Path) -> list[Path]:
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
    there = read_json(folder / RECORD, "the record of the run")["settings"]
    differing = [name for name in (*settings, *(set(there) - set(settings))) if there.get(name) != settings.get(name)]
    if differing:
        values = "; ".join(f"`{name}` is {settings.get(name)!r}, was {there.get(name)!r}" for name in differing)
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
    there = file_sizes(folder)
    for name, size in written.items():
        if name not in there:
            return f"{name} is missing"
        if there[name] != size:
            return f"{name} has {there[name]:,} bytes, and {size:,} were written"
    for name in there:
        if problem := _problem_of(folder / name):
            return f"{name} {problem}"
    return ""


def _problem_of(path: Path) -> str:
    try:
        if path.suffix == ".safetensors":
            with safe_open(path, framework="numpy"):
                return ""  # its header fits the file's length
        if path.suffix in _PICKLED:
            with zipfile.ZipFile(path) as archive:
                changed = archive.testzip() if path.stat().st_size <= _READ_WHOLE else None
                return f"was changed: {changed} has another checksum" if changed else ""
        if path.name == TRAINER_STATE_NAME:
            state = json.loads(path.read_text(encoding="utf-8"))
            is_whole = isinstance(state, dict) and isinstance(state.get("global_step"), int)
            return "" if is_whole else "has no `global_step`"
    except (OSError, ValueError, SafetensorError, zipfile.BadZipFile, NotImplementedError) as error:
        return f"is damaged ({error})"
    return ""


def is_patience_exhausted(
    history: Sequence[Mapping[str, Any]], metric: str, best_step: int, patience: int | None
) -> bool:
    """Return True if `patience` validations have passed since the best one.

    A checkpoint holds all arguments, so a resumed run stops where the straight one does.

    Args:
        history: Rows of the log, each with its `step`; those of a validation hold `eval_<metric>`.
        metric: The metric that chooses the weights.
        best_step: Step of the best validation.
        patience: Validations without a better one before training stops; None for any number.
    """
    later = [row for row in history if f"eval_{metric}" in row and row["step"] > best_step]
    return patience is not None and len(later) >= patience


def has_stopped_early(checkpoint: Path, metric: str, patience: int | None) -> bool:
    """Return True if the run that wrote a checkpoint ran out of patience there: nothing is left to train."""
    if patience is None:
        return False
    state = read_json(checkpoint / TRAINER_STATE_NAME, "the trainer's state")
    return is_patience_exhausted(state["log_history"], metric, state["best_global_step"] or 0, patience)


def put_in_place(partial: Path, output_dir: Path, settings: Mapping[str, Any], step: int) -> None:
    """Make the checkpoint in `partial` the best one. A run that is killed here writes it again when it is resumed."""
    mark_whole(partial, settings, step)
    best = output_dir / BEST
    if best.exists():
        (best / RECORD).unlink(missing_ok=True)
        shutil.rmtree(best)
    os.replace(partial, best)


def end_with_best(output_dir: Path) -> None:
    """Put the best checkpoint's files into `output_dir`, as hard links where the disk can."""
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

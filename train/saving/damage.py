"""Tells from a training checkpoint's files whether it can be gone on from, before anything of it is loaded."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from safetensors import SafetensorError, safe_open
from transformers.trainer import TRAINER_STATE_NAME

_PICKLED: Final = (".bin", ".pt", ".pth")
_READ_WHOLE: Final = 1 << 30
"""Bytes: of larger archives only the directory is read; a cut one has none."""


def file_sizes(folder: Path) -> dict[str, int]:
    """The bytes of every file of a folder, by its path below it."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.stat().st_size for path in files}


def damage_of(folder: Path, written: Mapping[str, int] | None) -> str:
    """What is wrong with a checkpoint's files, in words; "" if nothing is seen.

    Args:
        folder: The checkpoint's.
        written: The bytes of each file when it was written; None of one that an earlier version wrote.
    """
    there = file_sizes(folder)
    for name, size in (written or {}).items():
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
                return ""  # its header fits to the file's length
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

"""Checks of a config's values beyond their types: a field names its check, and the reader of configs applies it.

Each takes a value and returns what is wrong with it, to be read after the field's name; "" if nothing is.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from reflectune.core.addresses import redacted

Check = Callable[[Any], str]

MOST_SEED: Final = 2**32 - 1
"""As large as NumPy's seeds may be."""

MOST: Final = 2**53
"""The largest number that a field without a bound of its own may hold: above it numbers aren't exact in JSON."""

LONGEST_NAME: Final = 100
"""Characters of a split's name: it becomes part of file names, which hold 255 bytes."""

_LONGEST_PART: Final = 255
"""Bytes of a file's name."""

_HOLDS: Final = {
    "dataset.json": "a data set",
    "kb.json": "a knowledge base",
    "manifest.json": "an index",
    "probes.json": "probes",
    "reflection.json": "reflection data",
    "adapter_config.json": "an adapter",
    "config.json": "a model",  # scheme.json alone is none: exported data have it too
    "pyproject.toml": "the source of a project",
    "setup.py": "the source of a project",
}
"""What a folder is, by the file that only it has."""

_DEVICE: Final = re.compile(r"auto|cpu|(cuda|xpu|mps|npu)(:\d{1,3})?")


def device(value: str) -> str:
    """Whether this can be a device's name; whether there is one is seen when it is used."""
    return "" if _DEVICE.fullmatch(value) else f"must be auto, cpu, cuda or cuda:0 …, found `{short(value)}`"


def split_name(value: str) -> str:
    """Whether files can be called by this name of a split."""
    if not value:
        return ""
    if len(value) > LONGEST_NAME or len(value.encode()) > 2 * LONGEST_NAME:
        return f"must be at most {LONGEST_NAME} characters long, found {len(value)}"
    if value in (".", "..") or not value.isprintable() or set(value) & set('/\\:*?"<>|') or value != value.strip():
        return f"must be a name that a file can have, without slashes, found {short(value)!r}"
    return ""


def file(value: str) -> str:
    """Whether there is such a file, if one is named."""
    if not value or os.path.isfile(value):
        return ""
    return f"{short(value)} is a folder; name a file" if os.path.isdir(value) else f"there is no file {short(value)}"


def folder(value: str) -> str:
    """Whether there is such a folder, if one is named."""
    if not value or os.path.isdir(value):
        return ""
    return f"{short(value)} is a file; name a folder" if os.path.isfile(value) else f"there is no folder {short(value)}"


def output_folder(value: str) -> str:
    """Whether a folder can be written here, if one is named: no file is in its way, and nothing forbids it."""
    if not value:
        return ""
    path = Path(value)
    if any(len(os.fsencode(part)) > _LONGEST_PART for part in path.parts):
        return f"{short(value)} has a name that is too long for a file; choose a shorter one"
    for place in (path, *path.parents):
        if os.path.isdir(place):
            allowed = os.access(place, os.W_OK | os.X_OK)
            return "" if allowed else f"{short(value)} can't be written: {place} is read-only; name another folder"
        if os.path.lexists(place):
            return f"{short(value)} can't be written: {place} is no folder; name another one"
    return ""


def output_of(*markers: str) -> Check:
    """A check like `output_folder` that refuses a folder which holds another kind of output than one with `markers`.

    Args:
        *markers: Names of files; a folder with one of them holds this kind of output.
    """

    def check(value: str) -> str:
        if told := output_folder(value):
            return told
        if not value or any(os.path.exists(os.path.join(value, name)) for name in markers):
            return ""
        held = [what for name, what in _HOLDS.items() if os.path.exists(os.path.join(value, name))]
        return f"{short(value)} holds {held[0]} already; choose another folder" if held else ""

    return check


def output_file(value: str) -> str:
    """Whether a file can be written here, if one is named: no folder is in its way, and nothing forbids it."""
    if value and (os.path.isdir(value) or value.endswith("/")):
        return f"{short(value)} is a folder; name a file to write, e.g. {Path(value, 'scores.json')}"
    if value and len(os.fsencode(Path(value).name)) > _LONGEST_PART - 50:  # beside it lies a file with a longer name
        return f"{short(value)} has a name that is too long for a file; choose a shorter one"
    return output_folder(str(Path(value).parent)) if value else ""


def number(value: Any) -> str:
    """Whether a number is finite and at most `MOST`."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return ""
    try:
        if not math.isfinite(value):
            return f"must be a finite number, found {value}"
    except OverflowError:
        return f"must be at most {MOST:,}, found a number of {int(value).bit_length():,} bits"
    return "" if abs(value) <= MOST else f"must be between -{MOST:,} and {MOST:,}, found {value:g}"


def one_line(text: str) -> str:
    """A text in which line breaks and other characters that don't print are written as Python does: `\\n`."""
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def short(value: Any) -> str:
    """A value as an error shows it: cut, and without the secrets of an address."""
    text = redacted(value if isinstance(value, str) else repr(value))
    return text if len(text) <= 200 else f"{text[:200]}…"

"""Types of config values: texts and numbers with a check."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, Field

from reflectune.core.secrets import redacted

LARGEST_SEED: Final = 2**32 - 1
"""NumPy's largest seed."""

LARGEST_NUMBER: Final = 2**53
"""Above it numbers aren't exact in JSON."""

LONGEST_NAME: Final = 100
"""Characters of a split's name, which becomes part of file names."""
SPLIT_NAME: Final = re.compile(r"\w[\w.-]*")

_LONGEST_PART: Final = 255
"""Bytes of a file's name."""

_CONTENTS: Final = {
    "dataset.json": "a data set",
    "kb.json": "a knowledge base",
    "manifest.json": "an index",
    "probes.json": "probes",
    "reflection.json": "reflection data",
    "adapter_config.json": "an adapter",
    "config.json": "a model",  # not scheme.json: exported data have it too
    "pyproject.toml": "the source of a project",
    "setup.py": "the source of a project",
}
"""Content of a folder, by a file that no other kind of folder has."""

_DEVICE: Final = re.compile(r"auto|cpu|(cuda|xpu|mps|npu)(:\d{1,3})?")


def checked_by(problem_of: Callable[[str], str]) -> AfterValidator:
    """Make a validator of a function that returns a problem, "" if there is none.

    The problem is read after the key's name: "must be auto, cpu or cuda, found 'gpu'".

    Example:
        >>> Even = Annotated[str, checked_by(lambda text: "" if len(text) % 2 == 0 else "must be even")]
    """

    def validate(value: Any) -> Any:
        if value is not None and (problem := problem_of(value)):
            raise ValueError(problem)
        return value

    return AfterValidator(validate)


def one_of(*names: str) -> AfterValidator:
    """Return a validator for names that are known only at import, such as those of a registry."""
    return checked_by(lambda v: "" if v in names else f"must be one of {', '.join(names)}, found {short(v)!r}")


def device_problem(value: str) -> str:
    """Return a problem if this can't be a device's name. This machine may still lack the device."""
    return "" if _DEVICE.fullmatch(value) else f"must be auto, cpu, cuda or cuda:0 …, found {short(value)!r}"


def split_problem(value: str) -> str:
    """Return a problem if a split's name can't be part of a file name."""
    if not value:
        return ""
    if len(value) > LONGEST_NAME or len(value.encode()) > 2 * LONGEST_NAME:
        found = f"{len(value)} characters ({len(value.encode())} bytes)"
        return f"must be at most {LONGEST_NAME} characters ({2 * LONGEST_NAME} bytes) long, found {found}"
    if not SPLIT_NAME.fullmatch(value):
        return f"must consist of letters, digits, `_`, `-` and `.`, found {short(value)!r}"
    return ""


def file_problem(value: str) -> str:
    """Return a problem if the file doesn't exist."""
    if not value or os.path.isfile(value):
        return ""
    return f"must be an existing file, found {'the folder ' if os.path.isdir(value) else ''}{short(value)}"


def output_folder_problem(value: str) -> str:
    """Return a problem if the folder can't be written."""
    if not value:
        return ""
    path = Path(value)
    if any(len(os.fsencode(part)) > _LONGEST_PART for part in path.parts):
        return f"{short(value)} has a name that is too long for a file; choose a shorter one"
    for parent in (path, *path.parents):
        if os.path.isdir(parent):
            allowed = os.access(parent, os.W_OK | os.X_OK)
            return "" if allowed else f"{short(value)} can't be written: {parent} is read-only; name a different folder"
        if os.path.lexists(parent):
            return f"{short(value)} can't be written: {parent} is not a folder; name a different one"
    return ""


def output_file_problem(value: str) -> str:
    """Return a problem if the file can't be written."""
    if value and (os.path.isdir(value) or value.endswith("/")):
        return f"{short(value)} is a folder; name a file to write, e.g. {Path(value, 'scores.json')}"
    if value and len(os.fsencode(Path(value).name)) > _LONGEST_PART - 50:  # a temporary file has a longer name
        return f"{short(value)} has a name that is too long for a file; choose a shorter one"
    return output_folder_problem(str(Path(value).parent)) if value else ""


def output_of(*markers: str) -> AfterValidator:
    """Make a validator of an output folder that must not hold a different kind of output.

    Args:
        *markers: Names of files. A folder with one of them holds the right kind of output.

    Example:
        >>> IndexFolder = Annotated[str, output_of("manifest.json")]
    """

    def problem_of(value: str) -> str:
        if problem := output_folder_problem(value):
            return problem
        if not value or any(os.path.exists(os.path.join(value, name)) for name in markers):
            return ""
        found = [content for name, content in _CONTENTS.items() if os.path.exists(os.path.join(value, name))]
        return f"{short(value)} holds {found[0]} already; choose a different folder" if found else ""

    return checked_by(problem_of)


def one_line(text: str) -> str:
    """Return a text with line breaks and other unprintable characters escaped as in Python: `\\n`."""
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def short(value: Any) -> str:
    """Return a value as an error shows it: at most 200 characters, without the secrets of an address."""
    text = redacted(value if isinstance(value, str) else repr(value))
    return text if len(text) <= 200 else f"{text[:200]}…"


Device = Annotated[str, checked_by(device_problem)]
SplitName = Annotated[str, checked_by(split_problem)]
InputFile = Annotated[str, checked_by(file_problem)]
OutputFolder = Annotated[str, checked_by(output_folder_problem)]
OutputFile = Annotated[str, checked_by(output_file_problem)]

Dtype = Literal["float32", "bfloat16", "float16"]
"""Precisions that a model is loaded in."""

DeviceMap = Literal["auto", "balanced", "balanced_low_0", "sequential"]
"""Ways to spread one model's layers over several GPUs, by transformers' names."""

Seed = Annotated[int, Field(ge=0, le=LARGEST_SEED)]
Share = Annotated[float, Field(ge=0, le=1)]

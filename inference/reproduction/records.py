"""What a step was run with: a record beside its output, of settings and of fingerprints of what it read.

A folder of ours is fingerprinted by its own manifest, which has the fingerprints of what it was made from. Of a file
that is downloaded the size and both ends are read.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from reflectune.core.durable import read_record, write_json
from reflectune.core.hashing import file_fingerprint
from reflectune.inference.reproduction.steps import FINISHED, Step

MANIFESTS: Final = (
    "dataset.json",
    "kb.json",
    "manifest.json",
    "reflection.json",
    "probes.json",
    "reflectune.json",
    "assembled.json",
    "bem.json",
    "adapter_config.json",
    "config.json",
)
"""Files that say what a folder holds, and of what it was made."""

_END: Final = 1 << 20
_FOLDER: Final = "a folder"
"""The fingerprint of a folder without a manifest, e.g. of pictures: that it is there."""
_IDLE: Final = frozenset(
    "device device_map workers dataloader_workers llm_concurrency llm_url batch_questions batch_size token_budget "
    "keep_images logging_steps save_steps window report_questions root".split()
)
"""Settings that decide how a command works, and not what it makes."""


@dataclass(frozen=True)
class Record:
    """A run of a step.

    Attributes:
        settings: Those that decide what is made.
        inputs: By path, the fingerprint that it had when the step began.
        began: Seconds since 1970.
        minutes: That the step took, the last run if it was cut off before; None if it has not ended well.
    """

    settings: Mapping[str, Any]
    inputs: Mapping[str, str]
    began: float
    minutes: float | None = None


def record_path(step: Step, data: Path) -> Path:
    """Where a step's record is: beside its output."""
    output = data / step.output
    return output.with_name(f"{output.name}.step.json")


def read(step: Step, data: Path) -> Record | None:
    """A step's record; None if it was never run from a list.

    Raises:
        UserError: The file is damaged.
    """
    path = record_path(step, data)
    if not path.is_file():
        return None
    kept = read_record(path, "the record of a step", settings=dict, inputs=dict, began=float)
    return Record(kept["settings"], kept["inputs"], kept["began"], kept.get("minutes"))


def begin(step: Step, data: Path) -> Record:
    """Write that a step begins, with what it reads."""
    record = Record(deciding(step), inputs(step, data), time.time())
    write_json(record_path(step, data), dataclasses.asdict(record))
    return record


def end(step: Step, data: Path, record: Record, seconds: float) -> None:
    """Write that it has ended well."""
    write_json(record_path(step, data), dataclasses.asdict(dataclasses.replace(record, minutes=round(seconds / 60, 2))))


def deciding(step: Step) -> dict[str, Any]:
    """The settings that decide what a step makes, as JSON has them."""
    return {key: value for key, value in step.settings.items() if key not in _IDLE}


def inputs(step: Step, data: Path) -> dict[str, str]:
    """The fingerprints of what a step reads; what is missing is left out."""
    fingerprints = {path: content(data / path) for path in step.reads}
    return {path: fingerprint for path, fingerprint in fingerprints.items() if fingerprint}


def content(path: Path) -> str:
    """The fingerprint of a file or folder; "" if it isn't there, or isn't finished."""
    if path.is_file():
        return file_fingerprint(path, read=_ends)
    manifest = next((path / name for name in MANIFESTS if (path / name).is_file()), None)
    if manifest is not None:
        return file_fingerprint(manifest)
    return _FOLDER if path.is_dir() and any(path.iterdir()) else ""


def finished(step: Step, data: Path) -> Path | None:
    """The file that a step wrote last, if it has."""
    output = data / step.output
    marker = output / FINISHED[step.module] if FINISHED[step.module] else output
    return marker if marker.is_file() else None


def _ends(path: Path) -> Iterator[bytes]:
    """The size of a file, and its first and last MiB."""
    size = path.stat().st_size
    yield str(size).encode()
    with path.open("rb") as file:
        yield file.read(_END)
        file.seek(max(_END, size - _END))
        yield file.read(_END)

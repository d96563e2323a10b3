"""Hashes of values and files."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any


def fingerprint(value: Any) -> str:
    """Return a 16-digit hex hash of a JSON-like value; dataclasses, tuples, sets and paths are included."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, default=_plain)
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:16]  # a path may not be UTF-8


def read_blocks(path: Path) -> Iterator[bytes]:
    """Yield the bytes of a file in blocks of 1 MiB."""
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            yield block


def sha256_of(path: Path) -> str:
    """Return the sha256 of a file in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def file_fingerprint(*paths: str | Path, read: Callable[[Path], Iterable[bytes | memoryview]] = read_blocks) -> str:
    """Return a 16-digit hex hash of the names and bytes of files, in the order given.

    Args:
        paths: The files.
        read: Yields all bytes of a file in order.
    """
    digest = hashlib.sha256()
    for path in map(Path, paths):
        digest.update(os.fsencode(path.name) + b"\0")
        for block in read(path):
            digest.update(block)
    return digest.hexdigest()[:16]


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    raise TypeError(f"cannot fingerprint a {type(value).__name__}")

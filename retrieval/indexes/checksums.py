"""Checksums of an index's files. Large files are sampled unless they are to be verified whole."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from reflectune.core.errors import UserError
from reflectune.core.hashing import sha256_of

CHECKSUMS: Final = "checksums"
"""Key of the manifest, whose value maps file names to `bytes`, `sha256`, and `sampled`, the SHA-256 of some chunks."""
WHOLE: Final = 1 << 26
"""Files of up to this size, 64 MiB, are always read whole."""
_CHUNKS: Final = 64
_CHUNK: Final = 1 << 16
_ADVICE: Final = "restore the file, or delete the folder and build the index again"


def checksums(paths: Iterable[Path]) -> dict[str, dict[str, Any]]:
    """Return the checksums of files, by their names."""
    return {
        path.name: {"bytes": path.stat().st_size, "sha256": sha256_of(path), "sampled": _sampled(path)}
        for path in paths
    }


def check_files(folder: Path, recorded: Any, names: Collection[str], *, verify: bool) -> None:
    """Refuse an index with a file that was replaced, truncated or changed since it was built.

    Without `verify`, 64 chunks of 64 KiB of a large file are read, including its first and last bytes. This detects
    files of other indexes, but not every change that keeps the size.

    Args:
        folder: Folder of the index.
        recorded: Checksums in the manifest, from `checksums`.
        names: Files to check.
        verify: Read large files whole.

    Raises:
        UserError: A file is missing or differs, or the checksums are damaged.
    """
    known = recorded if isinstance(recorded, Mapping) else {}
    if not all(isinstance(known.get(name), Mapping) for name in names):
        raise UserError(f"{folder}: the manifest's `{CHECKSUMS}` are damaged; {_ADVICE}")
    for name in names:
        path, expected = folder / name, known[name]
        if not path.is_file():
            raise UserError(f"a part of the index is missing: {path}; {_ADVICE}")
        size = path.stat().st_size
        if size != (built := expected.get("bytes")):
            raise UserError(f"{path} has {size} bytes, its manifest says {built}: it was cut or replaced; {_ADVICE}")
        key, digest = ("sha256", sha256_of) if verify or size <= WHOLE else ("sampled", _sampled)
        if digest(path) != expected.get(key):
            raise UserError(f"{path} was changed or replaced after it was built: its checksum differs; {_ADVICE}")


def _sampled(path: Path) -> str:
    """Return the SHA-256 of evenly spaced chunks, or of the whole file if the chunks would cover it."""
    size = path.stat().st_size
    if size <= _CHUNKS * _CHUNK:
        return sha256_of(path)
    digest = hashlib.sha256()
    with path.open("rb") as file:
        for number in range(_CHUNKS):
            file.seek((size - _CHUNK) * number // (_CHUNKS - 1))
            digest.update(file.read(_CHUNK))
    return digest.hexdigest()

"""The files that a data set was made from: what they are, and whether they are still the same."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from reflectune.core.errors import UserError
from reflectune.core.hashing import file_fingerprint
from reflectune.core.paths import OutsideRoot, resolve_below


def list_files(paths: Iterable[Path]) -> list[Path]:
    """The files among `paths` and in the folders among them, each once, by path.

    Links that lead out of such a folder are left out: no reader follows them.
    """
    files: set[Path] = set()
    for path in paths:
        files |= set(_files_below(path)) if path.is_dir() else {path}
    return sorted(files)


def _files_below(folder: Path) -> Iterator[Path]:
    for file in folder.rglob("*"):
        try:
            if file.is_file() and resolve_below(file.absolute(), folder):
                yield file
        except OutsideRoot:
            continue


def stat_files(files: Iterable[Path]) -> list[dict[str, Any]]:
    """Path, size and time of change of each file."""
    stats = [(file, file.stat()) for file in files]
    return [{"path": str(file), "bytes": stat.st_size, "mtime_ns": stat.st_mtime_ns} for file, stat in stats]


def with_fingerprints(sources: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The sources with a hash of each one's content; reads them all."""
    return [{**source, "fingerprint": file_fingerprint(source["path"])} for source in sources]


def check_unchanged(sources: Iterable[dict[str, Any]], since: str) -> None:
    """Refuse sources that are not what they were.

    A file of another size has changed; one of another time is hashed, where its hash is known, since a copy is not a
    change.

    Args:
        sources: As the manifest or `stat_files` has them.
        since: When they were listed, for the message.

    Raises:
        UserError: One is gone or has changed.
    """
    for source in sources:
        path = Path(source["path"])
        if not path.is_file():
            raise UserError(f"{path} is gone since {since}; put it back, or choose another `output`")
        stat = path.stat()
        same = stat.st_size == source["bytes"]
        if same and stat.st_mtime_ns != source["mtime_ns"]:
            same = file_fingerprint(path) == source.get("fingerprint")
        if not same:
            raise UserError(
                f"{path} has changed since {since} ({source['bytes']:,} bytes then, {stat.st_size:,} now); "
                "choose another `output`, or delete this one to convert anew"
            )

"""Files that survive `kill -9`: atomic writes, JSON records, and row logs that resume."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Self

from reflectune.core.errors import UserError
from reflectune.core.locking import take
from reflectune.core.partials import writing


def write_atomically(path: str | Path, content: str | bytes) -> None:
    """Write a file so that a reader sees the old content or the new one, never a part."""
    with writing(path) as partial, partial.open("wb") as file:
        file.write(content.encode() if isinstance(content, str) else content)
        file.flush()
        os.fsync(file.fileno())


def sync(folder: Path) -> None:
    """Flush the files and the directory entries below a folder to the disk."""
    folders = [folder]
    for path in folder.rglob("*"):
        if path.is_dir():
            folders.append(path)
        elif path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
    for path in folders:
        descriptor = os.open(path, os.O_RDONLY)
        with contextlib.suppress(OSError):  # some file systems sync no folders
            os.fsync(descriptor)
        os.close(descriptor)


def write_json(path: str | Path, value: Any) -> None:
    """Write `value` as indented JSON, atomically."""
    write_atomically(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def read_json(path: str | Path, what: str) -> Any:
    """Read a JSON file.

    Args:
        path: The file.
        what: Its content for errors, e.g. "the index's manifest".

    Raises:
        UserError: The file is missing, or is not JSON in UTF-8.
    """
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UserError(f"{what} is missing: {path}") from error
    except (ValueError, RecursionError) as error:  # not UTF-8, not JSON, a number of 5,000 digits, 5,000 brackets
        raise UserError(f"{what} is not valid JSON: {path}: {error}") from error


def read_row(line: bytes, where: str) -> dict[str, Any]:
    """Parse a line of a JSONL file that holds an object.

    Args:
        line: The line.
        where: Its file and position, for errors.

    Raises:
        UserError: It is not JSON in UTF-8, or not an object.
    """
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where}: not valid JSON: {error}") from error
    if not isinstance(row, dict):
        raise UserError(f"{where}: expected an object, found {type(row).__name__}")
    return row


def read_record(path: str | Path, what: str, **types: type) -> dict[str, Any]:
    """Read a JSON file that holds an object.

    Args:
        path: The file.
        what: Its content for errors.
        **types: Types of keys. A key may be missing.

    Raises:
        UserError: As `read_json`; or it holds something else, or a key has a value of a different type.
    """
    record = read_json(path, what)
    if not isinstance(record, dict):
        raise UserError(f"{what} is damaged: {path} holds {type(record).__name__}, not an object; make it again")
    for key, kind in types.items():
        value = record.get(key)
        if key in record and (not isinstance(value, kind) or isinstance(value, bool)):
            raise UserError(f"{what} is damaged: {path}: `{key}` is {type(value).__name__}, not {kind.__name__}")
    return record


class InUse(UserError):
    """Another run writes the file."""


class Closing(ABC):
    """A context manager that calls `close` at the end of its block."""

    @abstractmethod
    def close(self) -> None:
        """Release everything that it holds."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class RowLog(Closing):
    """Rows appended to a JSONL file as they are finished. A row cut off by a crash is dropped when it is reopened.

    The first line is a header with the fingerprint of everything that determines the rows. Opening a log with a
    different fingerprint is an error, and so is opening one that another run writes.

    Example:
        >>> with RowLog("traces.jsonl", fingerprint="8f3a…") as log:
        ...     for question in questions:
        ...         if question.id not in log.done:
        ...             log.append(question.id, answer(question))
    """

    def __init__(self, path: str | Path, fingerprint: str) -> None:
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.done: set[str] = set()
        lock = take(self.path)
        if lock is None:
            raise InUse(
                f"another run is writing {self.path}; wait until it is finished, or choose another output folder"
            )
        self._lock = lock
        self._file = self.path.open("ab")
        end_of_rows = 0
        try:
            for _, end, row in scan_rows(self.path, fingerprint):
                self.done.add(row["id"])
                end_of_rows = end
        except BaseException:
            self.close()
            raise
        self._file.truncate(end_of_rows)
        if end_of_rows == 0:
            self._write({"fingerprint": fingerprint})

    def append(self, row_id: str, row: dict[str, Any]) -> None:
        """Append a finished row; it is on the disk when this returns."""
        self._write({"id": row_id, **row})
        self.done.add(row_id)

    def _write(self, row: dict[str, Any]) -> None:
        self._file.write(json.dumps(row, ensure_ascii=False).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file, and release it for other runs."""
        self._file.close()
        self._lock.release()


def write_rows(path: str | Path, fingerprint: str, rows: Iterable[dict[str, Any]]) -> None:
    """Write a file in the format of `RowLog` atomically. Its rows may be read from the file that it replaces."""
    with writing(path) as partial, partial.open("wb") as file:
        for row in itertools.chain([{"fingerprint": fingerprint}], rows):
            file.write(json.dumps(row, ensure_ascii=False).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


def read_rows(path: str | Path, fingerprint: str | None = None) -> Iterator[dict[str, Any]]:
    """Yield the complete rows of a `RowLog`, in the order of writing, without its header.

    Raises:
        UserError: A fingerprint is given, and the log has a different one.
    """
    return (row for _, _, row in scan_rows(path, fingerprint))


def scan_rows(path: str | Path, fingerprint: str | None = None) -> Iterator[tuple[int, int, dict[str, Any]]]:
    """Yield the rows of `read_rows`, each after the bytes at which it begins and ends.

    Raises:
        UserError: As `read_rows`; or a row is damaged.
    """
    end = 0
    with Path(path).open("rb") as file:
        for line in file:
            if not line.endswith(b"\n"):
                break
            begin, end = end, end + len(line)
            row = read_row(line, f"{path} is damaged at byte {begin} (move it away to start again)")
            if begin:
                yield begin, end, row
            elif fingerprint not in (None, row.get("fingerprint")):
                raise UserError(
                    f"{path} was written with other settings, another model, index or data set (fingerprint "
                    f"{row.get('fingerprint')}, now {fingerprint}); choose another output folder, or delete it to "
                    "start again"
                )

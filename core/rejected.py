"""Bad rows of data: their error, and the list of rows that were left out, counted by reason."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from reflectune.core.errors import UserError

REJECTED = "rejected.jsonl"
ROWS_LEFT_OUT = 3
"""Exit status of a command that left rows out."""

_PARTICULARS = re.compile(r"`[^`]*`|'[^']*'|\"[^\"]*\"|\([^()]*\)|/\S+|(?<![\w-])-?\d[\d.,]*")


class BadRow(Exception):
    """An error in one row.

    `str(error)` is one line: "FILE:LINE: id X: field `f`: problem; fix".

    Args:
        file: The source file.
        line: Line from 1; in a file without lines (a JSON array or dict, Parquet) the record's number from 1.
        row_id: The row's id, "" if it has none.
        field: The field, "" for the row as a whole.
        problem: The value that was found.
        fix: Advice to the user.
    """

    def __init__(self, file: str | Path, line: int, row_id: str, field: str, problem: str, fix: str) -> None:
        self.file, self.line, self.row_id = str(file), line, row_id
        self.field, self.problem, self.fix = field, problem, fix
        super().__init__(file, line, row_id, field, problem, fix)

    def __str__(self) -> str:
        parts = [f"{self.file}:{self.line}"]
        parts += [f"id {self.row_id}"] if self.row_id else []
        parts += [f"field `{self.field}`"] if self.field else []
        return " ".join(f"{': '.join(parts)}: {self.problem}; {self.fix}".split())


Reject = Callable[[BadRow], None]
"""A handler of bad rows: raises a `UserError`, or notes the row and returns; then the reader takes the next one."""


def stop(error: BadRow) -> None:
    """End the run at the first bad row: the default `Reject`.

    Raises:
        UserError: Always.
    """
    raise UserError(str(error)) from error


def rejecter(rejected: Rejected | None) -> Reject:
    """Return the list of bad rows as a `Reject`; without one, `stop`."""
    return stop if rejected is None else rejected


class MissingImage(BadRow):
    """A row whose image is missing; a class of its own, so that image coverage can be counted."""


class UnreadableImage(BadRow):
    """A row whose image is damaged, or too large to decode safely."""


class Rejected:
    """The rows left out of a run; a `Reject` for the readers.

    Args:
        folder: Folder for `rejected.jsonl`; None: rows are counted.

    Attributes:
        first: The first bad rows, at most two of a file and reason, and ten in all.
    """

    def __init__(self, folder: Path | None) -> None:
        self.reasons: Counter[str] = Counter()
        self.images: Counter[str] = Counter()
        self.first: list[str] = []
        self._alike: Counter[tuple[str, str]] = Counter()
        self._path = folder / REJECTED if folder else None
        self._file = self._path.open("w", encoding="utf-8") if self._path else None

    def __call__(self, error: BadRow) -> None:
        """Note one row."""
        self.reasons[reason(error)] += 1
        if isinstance(error, (MissingImage, UnreadableImage)):
            self.images["missing" if isinstance(error, MissingImage) else "unreadable"] += 1
        kind = str(error.file), reason(error)
        self._alike[kind] += 1
        if self._alike[kind] <= 2 and len(self.first) < 10:
            self.first.append(str(error))
        if self._file is not None:
            self._file.write(json.dumps(as_json(error), ensure_ascii=False) + "\n")

    def note(self, errors: Iterable[BadRow]) -> None:
        """Note several rows."""
        for error in errors:
            self(error)

    @property
    def count(self) -> int:
        """The number of rows left out."""
        return sum(self.reasons.values())

    def close(self) -> None:
        """Close the file, and delete it if it has no rows."""
        if self._file is not None and self._path is not None:
            self._file.close()
            if not self.count:
                self._path.unlink()


def reason(error: BadRow) -> str:
    """Return the problem without the row's values, so that equal problems are counted together."""
    if isinstance(error, MissingImage):
        return "image missing"
    if isinstance(error, UnreadableImage):
        return "image unreadable"
    words = re.sub("…(,? …)+", "…", " ".join(_PARTICULARS.sub("…", error.problem).split()))[:80]
    return f"{error.field} {words}" if error.field else words


def as_json(error: BadRow) -> dict[str, Any]:
    """Return a bad row as a JSON object; `from_json` reads it."""
    return {
        "kind": type(error).__name__,
        "file": error.file,
        "line": error.line,
        "id": error.row_id,
        "field": error.field,
        "problem": error.problem,
        "fix": error.fix,
    }


def from_json(row: dict[str, Any]) -> BadRow:
    """Return the bad row that `as_json` wrote."""
    kind = _KINDS.get(row["kind"], BadRow)
    return kind(row["file"], row["line"], row["id"], row["field"], row["problem"], row["fix"])


_KINDS: dict[str, type[BadRow]] = {kind.__name__: kind for kind in (BadRow, MissingImage, UnreadableImage)}

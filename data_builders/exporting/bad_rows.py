"""Bad rows: gathered, so that all of them are told at once, or left out and listed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

from reflectune.core.durable import write_atomically
from reflectune.core.errors import UserError

REJECTED = "rejected.jsonl"
_SHOWN = 10
_KEPT = 10_000


class BadRows:
    """The bad rows of one file.

    Args:
        path: The file that they are in.
        on_error: What is to become of them.
    """

    def __init__(self, path: Path, on_error: Literal["stop", "skip"]) -> None:
        self._path, self._on_error = path, on_error
        self._kept: list[dict[str, Any]] = []
        self.count = 0

    def add(self, row: str, reason: str) -> None:
        """Note a bad row, by its place or id."""
        self.count += 1
        if len(self._kept) < _KEPT:
            self._kept.append({"file": str(self._path), "row": row, "reason": reason})

    def settle(self, output: Path, *, write: bool) -> None:
        """Raise if bad rows are not to be skipped, else list them in `rejected.jsonl`.

        Raises:
            UserError: There are bad rows, and `on_error` is `stop`.
        """
        if self.count and self._on_error == "stop":
            shown = "\n  ".join(f"{bad['row']}: {bad['reason']}" for bad in self._kept[:_SHOWN])
            more = f"\n  and {self.count - _SHOWN:,} more" if self.count > _SHOWN else ""
            raise UserError(
                f"{self._path} has {self.count:,} bad rows; mend them, or leave them out with --on_error skip:\n"
                f"  {shown}{more}"
            )
        if self.count and write:
            lines = (json.dumps(bad, ensure_ascii=False) + "\n" for bad in self._kept)
            write_atomically(output / REJECTED, "".join(lines))

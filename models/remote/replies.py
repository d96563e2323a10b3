"""Cache file of a remote model's replies. Each is written on arrival, so that none is paid for twice."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

from reflectune.core.durable import Closing, InUse, RowLog
from reflectune.core.errors import UserError

_LAYOUT = "remote replies 1"


class ReplyFile(Closing):
    """Replies by key in a JSONL file, with only their file positions in memory; thread-safe.

    Args:
        path: The file, which is created if it doesn't exist.

    Raises:
        UserError: Another process has it open, or it is not a file of replies.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        try:
            self._log = RowLog(self.path, _LAYOUT)
        except InUse:
            raise UserError(
                f"{self.path} is in use by another run; wait for it, or give this one its own `llm_cache`"
            ) from None
        except UserError as error:
            raise UserError(f"the file of replies can't be used: {error}") from error
        self._file = self.path.open("rb")
        self._lock = threading.Lock()
        self._positions: dict[str, tuple[int, int]] = {}
        self.prompt_tokens = self.completion_tokens = 0
        self._scan()

    def __contains__(self, key: str) -> bool:
        return key in self._positions

    def __len__(self) -> int:
        return len(self._positions)

    def get(self, key: str) -> dict[str, Any]:
        """Return the reply under `key`."""
        position, length = self._positions[key]
        row: dict[str, Any] = json.loads(os.pread(self._file.fileno(), length, position))
        return row

    def put(self, key: str, row: dict[str, Any]) -> None:
        """Write a reply; it is on the disk when this returns. `row` has `prompt_tokens` and `completion_tokens`."""
        with self._lock:
            start = self.path.stat().st_size
            self._log.append(key, row)
            self._note(key, start, self.path.stat().st_size - start, row)

    def close(self) -> None:
        """Close the file, and release it for other runs."""
        self._log.close()
        self._file.close()

    def _scan(self) -> None:
        with self.path.open("rb") as file:
            position = len(file.readline())  # the header
            for line in file:
                row = json.loads(line)
                self._note(row["id"], position, len(line), row)
                position += len(line)

    def _note(self, key: str, position: int, length: int, row: dict[str, Any]) -> None:
        self._positions[key] = (position, length)
        self.prompt_tokens += row["prompt_tokens"]
        self.completion_tokens += row["completion_tokens"]

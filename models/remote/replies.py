"""Replies of a remote model on disk: each is kept the moment it arrives, so that nothing is paid for twice."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from types import TracebackType
from typing import Any

from reflectune.core.durable import InUse, RowLog
from reflectune.core.errors import UserError

_LAYOUT = "remote replies 1"


class ReplyFile:
    """A file of replies by key, appended to row by row; memory holds a position per reply.

    Threads may share one. A second process is refused, since two writers would damage the file.

    Args:
        path: The JSONL file; it is made if it isn't there.

    Raises:
        UserError: Another process has it open, or it is no file of replies.
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
        self._places: dict[str, tuple[int, int]] = {}
        self.prompt_tokens = self.completion_tokens = 0
        self._scan()

    def __contains__(self, key: str) -> bool:
        return key in self._places

    def __len__(self) -> int:
        return len(self._places)

    def get(self, key: str) -> dict[str, Any]:
        """The reply that was put under `key`."""
        position, length = self._places[key]
        row: dict[str, Any] = json.loads(os.pread(self._file.fileno(), length, position))
        return row

    def put(self, key: str, row: dict[str, Any], *, sync: bool = True) -> None:
        """Keep a reply; with `sync` it is on the disk when this returns.

        `row` says how many tokens it cost, in `prompt_tokens` and `completion_tokens`.
        """
        with self._lock:
            start = self.path.stat().st_size
            self._log.append(key, row, sync=sync)
            self._note(key, start, self.path.stat().st_size - start, row)

    def close(self) -> None:
        """Close the file and let other runs have it."""
        self._log.close()
        self._file.close()

    def __enter__(self) -> ReplyFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _scan(self) -> None:
        with self.path.open("rb") as file:
            position = len(file.readline())  # the header
            for line in file:
                row = json.loads(line)
                self._note(row["id"], position, len(line), row)
                position += len(line)

    def _note(self, key: str, position: int, length: int, row: dict[str, Any]) -> None:
        self._places[key] = (position, length)
        self.prompt_tokens += row["prompt_tokens"]
        self.completion_tokens += row["completion_tokens"]

"""Replies to a pipeline's steps, logged round by round, so that an interrupted run resumes inside its trajectories."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from reflectune.core import rows
from reflectune.core.durable import Closing, RowLog, read_rows
from reflectune.core.errors import UserError
from reflectune.core.hashing import fingerprint
from reflectune.inference.operators.budget import Spent
from reflectune.inference.operators.requests import (
    JudgeEachReply,
    JudgeReply,
    LikenReply,
    RerankReply,
    SearchReply,
    StepReply,
    StepRequest,
    WriteReply,
)

_KINDS: Mapping[str, type[Any]] = {
    kind.__name__: kind for kind in (WriteReply, JudgeReply, JudgeEachReply, SearchReply, LikenReply, RerankReply)
}


class Journal(Closing):
    """Replies on disk, one line for each round of a batch of questions.

    A round's line is written atomically before the next round begins. A resumed batch gets the same replies, and its
    later rounds run in batches of the same composition as without the interruption.

    Args:
        folder: Folder with one file for each process of a launch.
        fingerprint: Hash of everything that determines a reply.
        process: Index of this process.
        limits: Budgets of a trajectory. A round that was logged under other limits is executed again.

    Raises:
        UserError: The journal has other settings, or another run writes it.
    """

    def __init__(
        self, folder: Path, name: str, fingerprint: str, process: int = 0, limits: Mapping[str, float] | None = None
    ) -> None:
        self._limits = dict(limits or {})
        self._log = RowLog(folder / f"{name}.{process}.jsonl", fingerprint)
        paths = sorted(folder.glob(f"{name}.*.jsonl"))
        self._rows = {row["id"]: row for path in paths for row in read_rows(path, fingerprint)}

    def get(self, key: str, requests: Sequence[StepRequest]) -> tuple[Sequence[StepReply], float] | None:
        """Return the replies of a round and their seconds; None if it was not executed.

        Raises:
            UserError: The logged round has other requests.
        """
        row = self._rows.get(key)
        if row is None:
            return None
        if row["requests"] != fingerprint(list(requests)):
            if row["limits"] != self._limits:
                return None
            raise UserError(
                f"{self._log.path} was written by another version of this pipeline, whose steps have other requests; "
                "delete it to start these questions again"
            )
        return [rows.from_row(_KINDS[reply["kind"]], reply["value"]) for reply in row["replies"]], row["seconds"]

    def spent(self, key: str) -> Spent | None:
        """Return the used part of the run's budget at the start of a round; None if it was not executed."""
        row = self._rows.get(key)
        return None if row is None else (row["spent"][0], row["spent"][1])

    def put(
        self,
        key: str,
        requests: Sequence[StepRequest],
        replies: Sequence[StepReply],
        seconds: float,
        spent: Spent = (0, 0.0),
    ) -> None:
        """Append a round; it is on disk when this returns."""
        row = {
            "requests": fingerprint(list(requests)),
            "seconds": seconds,
            "replies": [{"kind": type(reply).__name__, "value": rows.to_row(reply)} for reply in replies],
            "spent": list(spent),
            "limits": self._limits,
        }
        self._log.append(key, row)

    def close(self) -> None:
        """Close the file."""
        self._log.close()


def remove_journal(folder: Path, name: str) -> None:
    """Delete a pipeline's journal after its traces are stored."""
    for path in folder.glob(f"{name}.*.jsonl"):
        path.unlink()
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()

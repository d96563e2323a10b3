"""What was replied to a pipeline's steps, round by round: a run that was cut off goes on inside its trajectories."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from reflectune.core import rows
from reflectune.core.durable import RowLog, read_rows
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


class Journal:
    """Replies on the disk, a line for each round of a batch of questions.

    A round's line is written before the next round begins, and whole or not at all. So a batch that is gone on with has
    the same replies, and its later rounds are carried out in the same company as if it had never been cut off.

    Args:
        folder: Where it lies, a file for each process of a launch.
        name: The pipeline's.
        fingerprint: Hash of everything that determines a reply.
        process: The number of this process.
        limits: What trajectories may use. Where they were told to end by other limits, their steps are asked for anew.

    Raises:
        UserError: A journal of other settings lies there, or another run writes it.
    """

    def __init__(
        self, folder: Path, name: str, fingerprint: str, process: int = 0, limits: Mapping[str, float] | None = None
    ) -> None:
        self._limits = dict(limits or {})
        self._log = RowLog(folder / f"{name}.{process}.jsonl", fingerprint)
        paths = sorted(folder.glob(f"{name}.*.jsonl"))
        self._rows = {row["id"]: row for path in paths for row in read_rows(path, fingerprint)}

    def get(self, key: str, requests: Sequence[StepRequest]) -> tuple[Sequence[StepReply], float] | None:
        """The replies of a round and the seconds that they took; None if it was not carried out.

        Raises:
            UserError: The round asked for something else then.
        """
        row = self._rows.get(key)
        if row is None:
            return None
        if row["requests"] != fingerprint(list(requests)):
            if row.get("limits", {}) != self._limits:
                return None
            raise UserError(
                f"{self._log.path} was written by another version of this pipeline: its steps ask for other things; "
                "delete it to start these questions again"
            )
        return [rows.from_row(_KINDS[reply["kind"]], reply["value"]) for reply in row["replies"]], row["seconds"]

    def spent(self, key: str) -> Spent | None:
        """How much of the run's budget was used when a round began; None if it was not carried out."""
        row = self._rows.get(key)
        return None if row is None else (row.get("spent", [0, 0.0])[0], row.get("spent", [0, 0.0])[1])

    def put(
        self,
        key: str,
        requests: Sequence[StepRequest],
        replies: Sequence[StepReply],
        seconds: float,
        spent: Spent = (0, 0.0),
    ) -> None:
        """Keep a round; it is on the disk when this returns."""
        kept = [{"kind": type(reply).__name__, "value": rows.to_row(reply)} for reply in replies]
        told = {"spent": list(spent), "limits": self._limits}
        row = {"requests": fingerprint(list(requests)), "seconds": seconds, "replies": kept, **told}
        self._log.append(key, row)

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._log.close()


def remove_journal(folder: Path, name: str) -> None:
    """Delete a pipeline's journal, once its traces are kept."""
    for path in folder.glob(f"{name}.*.jsonl"):
        path.unlink()
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()

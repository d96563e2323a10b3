"""How far a reproduction is: of each step whether it is done, stale, half done, next or blocked, and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from reflectune.core.durable import read_json
from reflectune.core.locking import is_held, lock_path
from reflectune.core.partials import half_downloaded
from reflectune.core.values import short
from reflectune.inference.reproduction import records
from reflectune.inference.reproduction.steps import DOWNLOAD, FINISHED, Step, writer_of

State = Literal["done", "stale", "half done", "next", "blocked", "running"]
READY: Final[tuple[State, ...]] = ("stale", "half done", "next")
"""States of a step that can be run."""


@dataclass(frozen=True)
class Status:
    """How far a step is.

    Attributes:
        step: The step.
        state: `done`; `stale`: it was made from something else, or with other settings; `half done`: the same command
            goes on; `next`: nothing is missing; `blocked`: something is; `running`: a process writes its output.
        why: In a few words; "" where nothing is to be said.
    """

    step: Step
    state: State
    why: str = ""

    def line(self, width: int) -> str:
        """A line of the list."""
        return f"{self.state:<9}  {self.step.name:<{width}}  {self.why}".rstrip()


def statuses(steps: Sequence[Step], data: Path, every: Sequence[Step] | None = None) -> list[Status]:
    """The status of each step.

    Args:
        steps: Those to look at, in order.
        data: The folder that their paths start from.
        every: All of the list, which may write what these read; the same if None.
    """
    listed = list(every if every is not None else steps)
    known: dict[str, Status] = {}
    for step in listed:
        known[step.name] = _status(step, listed, data, known)
    return [known[step.name] for step in steps]


def told(listed: Sequence[Status], heading: str) -> str:
    """The list of statuses as text."""
    width = max((len(status.step.name) for status in listed), default=0)
    count = sum(status.state == "done" for status in listed)
    return "\n".join([f"{heading}: {count} of {len(listed)} steps are done", *(one.line(width) for one in listed)])


def _status(step: Step, every: Sequence[Step], data: Path, known: Mapping[str, Status]) -> Status:
    if step.module == DOWNLOAD:
        return _downloads(step, every, data)
    if is_held(lock_path((data / step.output).resolve())):
        return Status(step, "running", f"a process writes {step.output}")
    record, marker = records.read(step, data), records.finished(step, data)
    begun = marker is None and _is_begun(data / step.output)
    if not begun and marker is None:
        missing = _missing(step, every, data, known)
        return Status(step, "blocked", missing) if missing else Status(step, "next", _size_of(step))
    now = records.inputs(step, data)
    changed = _differs(step, record, now) if record else _older(step, data, marker)
    waits = _waits_for(step, every, known)
    if begun:
        missing = _missing(step, every, data, known)
        if missing:
            return Status(step, "blocked", f"begun, but {missing}")
        advice = f"; `--redo {step.name}` begins anew" if changed else "the same command goes on"
        return Status(step, "half done", f"{changed}{advice}")
    if changed:
        return Status(step, "stale", changed)
    if waits:
        return Status(step, "stale", waits)
    minutes = f", {record.minutes:g} min" if record and record.minutes is not None else ""
    return Status(step, "done", f"{step.output}{minutes if record else ', run by hand'}")


def _downloads(step: Step, every: Sequence[Step], data: Path) -> Status:
    """Of the downloads: whether all is there that steps which aren't left out read, and no step writes."""
    outside = {path: None for other in every if not other.extra for path in other.reads if not writer_of(path, every)}
    missing = [path for path in outside if not records.content(data / path)]
    if not missing:
        return Status(step, "done", f"{len(outside)} files and folders")
    some = ", ".join(missing[:2]) + (", …" if len(missing) > 2 else "")
    return Status(step, "next", f"{len(missing)} of {len(outside)} files and folders are missing: {some}")


def _is_begun(output: Path) -> bool:
    return output.is_dir() and any(output.iterdir())


def _size_of(step: Step) -> str:
    return f"writes {step.output}" + (f", about {step.gigabytes:,.3g} GB" if step.gigabytes else "")


def _missing(step: Step, every: Sequence[Step], data: Path, known: Mapping[str, Status]) -> str:
    """What a step can't begin without; "" if nothing is missing."""
    for path in step.reads:
        writer = writer_of(path, every)
        if writer is not None and writer.name != step.name:
            if writer.name not in known:
                return f"{writer.name}, which writes {path}, stands behind it in the list"
            if known[writer.name].state != "done":
                return f"{writer.name} is {_in_words(known[writer.name].state)}"
        if not records.content(data / path):
            part = half_downloaded(data / path)
            return f"{path} is half downloaded ({part.name})" if part else f"{path} is missing"
    return ""


def _in_words(state: State) -> str:
    return {"next": "not done", "blocked": "not done", "running": "still running"}.get(state, state)


def _waits_for(step: Step, every: Sequence[Step], known: Mapping[str, Status]) -> str:
    """A step before it that is stale, so that this one's input will be another; "" if none is."""
    writers = (writer_of(path, every) for path in step.reads)
    before = (known[writer.name] for writer in writers if writer is not None and writer.name in known)
    return next((f"{one.step.name}, which it reads, is stale" for one in before if one.state == "stale"), "")


def _differs(step: Step, record: records.Record, now: Mapping[str, str]) -> str:
    """What of a step is not what it was when it was run; "" if nothing is.

    An input that is gone since is no change, nor is one that lies elsewhere now (`root`).
    """
    for path, fingerprint in now.items():
        before = record.inputs.get(path)
        if before is not None and before != fingerprint:
            return f"{path} is another one since ({before} then, {fingerprint} now)"
    kept, settings = dict(record.settings), records.deciding(step)
    for key in sorted({*kept, *settings}):
        if kept.get(key) != settings.get(key):
            return f"`{key}` is {_shown(settings.get(key))} now, {_shown(kept.get(key))} then"
    moved = {fingerprint for path, fingerprint in record.inputs.items() if path not in step.reads}
    for path in sorted(now.keys() - record.inputs.keys()) if moved else ():
        if now[path] not in moved:
            return f"{path}, which it reads now, is another one ({now[path]}) than what it read elsewhere"
    return ""


def _older(step: Step, data: Path, marker: Path | None) -> str:
    """What of a step that was run by hand can't be right: it is older than what it reads, or of another one."""
    if marker is None:
        return ""
    if step.module.startswith("retrieval.build_") and FINISHED[step.module]:
        base = data / str(step.settings.get("knowledge")) / "kb.json"
        if base.is_file():
            named, there = _value(marker, "kb_fingerprint"), _value(base, "fingerprint")
            if named != there:
                return f"it is of the knowledge base {named}, and {step.settings['knowledge']} is {there}"
    for path in step.reads:
        manifests = (data / path / name for name in records.MANIFESTS)
        source = next((one for one in manifests if one.is_file()), None)
        if source is not None and source.stat().st_mtime > marker.stat().st_mtime:
            return f"it is older than {path}, which it reads"
    return ""


def _value(path: Path, key: str) -> Any:
    kept = read_json(path, "a manifest")
    return kept.get(key) if isinstance(kept, dict) else None


def _shown(value: Any) -> str:
    return "unset" if value is None else short(str(value))

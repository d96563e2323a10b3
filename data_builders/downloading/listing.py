"""A list of public files as a person reads it."""

from __future__ import annotations

from collections.abc import Sequence

from reflectune.data_builders.downloading.checking import FileState
from reflectune.data_builders.downloading.config import DownloadList, PublicFile


def listed(config: DownloadList) -> str:
    """All files with size, rows, licence and source, one a line, and under each what else is known of it."""
    files = config.chosen()
    rows = [("what", "size", "rows", "licence", "where")]
    rows += [(_name(file), str(file.published_size), _rows(file), file.licence, _source(file)) for file in files]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    lines = []
    for row, file in zip(rows, [None, *files], strict=True):
        lines.append("  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[4]]))
        lines += [f"    {told}" for told in (_details(file) if file else ())]
    return "\n".join([*lines, _total(files)])


def reported(states: Sequence[FileState]) -> str:
    """The state of each file, and how many are in which."""
    lines = [
        f"{state.state:<8}{state.path}{'' if state.is_needed else ' (optional)'}{f': {state.why}' if state.why else ''}"
        for state in states
    ]
    counts = {name: sum(state.state == name for state in states) for name in ("there", "missing", "partial", "wrong")}
    shown = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
    return "\n".join([*lines, f"{len(states)} files: {shown}"])


def _name(file: PublicFile) -> str:
    return file.name + (" (optional)" if file.optional else "")


def _rows(file: PublicFile) -> str:
    return f"{file.rows:,}" if file.rows is not None else ""


def _source(file: PublicFile) -> str:
    if file.hub:
        gated = ", gated" if file.gated else ""
        return f"Hub: {file.hub}@{file.revision or 'newest (no commit pinned)'}{gated}"
    return file.url or f"by hand: {file.page}"


def _details(file: PublicFile) -> list[str]:
    member = f" of {file.member}" if file.member else ""
    return [
        *([f"read by {', '.join(file.read_by)}"] if file.read_by else []),
        *([f"sha256{member} {file.sha256}"] if file.sha256 else []),
        *([f"see {file.page}"] if file.page and (file.hub or file.url) else []),
        *([f"then {file.then}"] if file.then else []),
        *([file.note] if file.note else []),
    ]


def _total(files: Sequence[PublicFile]) -> str:
    sizes = [file.published_size for file in files]
    known = sum(size.high for size in sizes if size.is_known)
    unknown = sum(not size.is_known for size in sizes)
    return f"{len(files)} entries: about {known / 2**30:,.1f} GiB" + (
        f", and {unknown} whose size is not published" if unknown else ""
    )

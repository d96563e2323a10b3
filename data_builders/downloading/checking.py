"""Is a public file there, and is it the whole, right one? Looked at in the order of what costs least."""

from __future__ import annotations

import gzip
import json
import os
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Final, Literal

import ijson.backends.python as careful

from reflectune.core.durable import write_json
from reflectune.core.errors import UserError
from reflectune.core.hashing import sha256_of, sha256_of_blocks
from reflectune.core.partials import half_downloaded, partial_path
from reflectune.data_builders.downloading.config import DownloadList, PublicFile
from reflectune.data_builders.readers.files import read_csv, read_jsonl, read_parquet
from reflectune.data_builders.readers.json_documents import read_json_array, read_json_dict
from reflectune.data_builders.readers.rows import Row

State = Literal["there", "missing", "wrong", "partial"]

CHECKED = ".checked.json"
"""Lies in `root`: checksums and numbers of rows of files, each with the size and time that the file had then."""

_PACKED: Final = (".gz", ".zip")
_TAIL = 1 << 16
_SMALL = 64 << 20
"""A gzip file of so many bytes is read to its end."""
_IMPOSTORS: Final = {
    b"<!doctype html": "a web page was saved in its place",
    b"<html": "a web page was saved in its place",
    b"<?xml": "a server's error was saved in its place",
    b"version https://git-lfs": "it is a Git LFS pointer, not the file",
}


@dataclass(frozen=True)
class FileState:
    """What of a public file is on the disk.

    Attributes:
        path: Where it belongs; of a model its folder in the Hub's cache, or its name if it isn't there.
        state: `there`; `missing`; `partial` (half downloaded); `wrong` (another file, damaged or truncated).
        why: What was found and what to do; "" if it is there.
        is_needed: Whether a run can't do without it.
    """

    path: Path
    state: State
    why: str = ""
    is_needed: bool = True


def check(config: DownloadList) -> tuple[FileState, ...]:
    """The state of each file of a list, in its order. Nothing is downloaded.

    A file that was read whole is not read again until its size or time changes (see `CHECKED`).
    """
    root = Path(config.root).expanduser()
    known = _Known(root / CHECKED)
    states = tuple(check_one(config, file, known) for file in config.chosen())
    known.save()
    return states


def is_complete(states: tuple[FileState, ...]) -> bool:
    """Whether every file that is needed is there, and none is wrong."""
    return all(state.state == "there" or (state.state == "missing" and not state.is_needed) for state in states)


def check_one(config: DownloadList, file: PublicFile, known: _Known | None = None) -> FileState:
    """The state of one file."""
    if not file.path:
        return _check_model(file)
    place = config.place(file)
    state, why = _look(config, file, place, known or _Known(None))
    return FileState(place, state, why, not file.optional)


def how(file: PublicFile, place: Path) -> str:
    """How a missing file is had, in one line."""
    if file.hub:
        kind, name = file.repository
        where = f"https://huggingface.co/{'datasets/' if kind == 'dataset' else ''}{name}"
        first = f"accept its licence at {where} and log in (`hf auth login`), then " if file.gated else ""
        return f"{first}run this command without a flag: the Hub has it"
    target = place.parent / Path(file.url).name if file.then else place
    steps = []
    if file.url:
        steps.append(f"curl -L -C - --create-dirs -o {target} {file.url}")
    if file.page:
        steps.append(f"see {file.page}")
    return "; ".join([*steps, *([f"then {file.then}"] if file.then else [])])


def _look(config: DownloadList, file: PublicFile, place: Path, known: _Known) -> tuple[State, str]:
    if file.is_folder:
        return _look_into(file, place)
    if place.is_dir():
        return "wrong", f"a folder is where the file {place.name} belongs; move it"
    if not place.is_file():
        return _absent(file, place)
    size = place.stat().st_size
    if problem := _impostor(place):
        return "wrong", f"{problem}; delete it, and {how(file, place)}"
    if not config.stand_ins and (told := _by_size(file, place, size)):
        return told
    if problem := _truncated(place, size):
        return "wrong", f"truncated: {problem}; delete it, and {how(file, place)}"
    if problem := _first_rows(file, place):
        return "wrong", problem
    if not config.stand_ins and config.checksums and (problem := _whole(config, file, place, known)):
        return "wrong", f"{problem}; delete it, and {how(file, place)}"
    return "there", ""


def _absent(file: PublicFile, place: Path) -> tuple[State, str]:
    begun = (half_downloaded(place), partial_path(place, common=True))
    for partial in begun:
        if partial is not None and partial.exists():
            size = f", {partial.stat().st_size:,} bytes" if partial.is_file() else ""
            return "partial", f"{partial.name} is there{size}; go on with it: {_again(file)}"
    if _is_begun(file, place):
        return "partial", f"the Hub's client has begun it; {_again(file)}"
    for ending in _PACKED:
        if (packed := place.with_name(place.name + ending)).is_file():
            return "partial", f"{packed.name} is there; unpack it: {file.then or f'unpack {packed.name}'}"
    return "missing", how(file, place)


def _again(file: PublicFile) -> str:
    if file.hub:
        return "run this command without a flag"
    return "run the same download again (`curl -C -` goes on)" if file.url else "let the download finish"


def _look_into(file: PublicFile, place: Path) -> tuple[State, str]:
    """A folder is there if it holds a file that looks like its example: millions of files aren't counted."""
    if place.exists() and not place.is_dir():
        return "wrong", f"a file is where the folder {place.name}/ belongs; move it"
    if _is_begun(file, place):
        return "partial", f"the Hub's client has begun it; {_again(file)}"
    if not place.is_dir() or not any(path.name != ".cache" for path in place.iterdir()):
        return "missing", how(file, place)
    if file.example and next(place.glob(file.example), None) is None:
        return "wrong", f"holds nothing like {file.example}; check that it was unpacked there: {how(file, place)}"
    return "there", ""


def _impostor(place: Path) -> str:
    with place.open("rb") as opened:
        head = opened.read(256).lstrip().lower()
    return next((problem for begin, problem in _IMPOSTORS.items() if head.startswith(begin)), "")


def _by_size(file: PublicFile, place: Path, size: int) -> tuple[State, str] | None:
    published = file.published_size
    if not published.is_known or file.then:  # the size is the archive's, not that of what came out of it
        return None
    if size < published.low:
        return "partial", f"half downloaded: {size:,} bytes of {published}; {_again(file)}"
    if size > published.high:
        return "wrong", f"size: {size:,} bytes, published are {published}; delete it, and {how(file, place)}"
    return None


def _truncated(place: Path, size: int) -> str:
    """What the end of a file lacks; "" if it is whole, as far as that can be seen without reading it."""
    if not size:
        return "it is empty"
    with place.open("rb") as opened:
        head = opened.read(4)
        opened.seek(max(0, size - _TAIL))
        tail = opened.read()
    suffix = place.suffix.lower()
    if suffix == ".zip":
        return "" if zipfile.is_zipfile(place) else "the zip file's list of contents, at its end, is not there"
    if suffix == ".gz":
        return _gzip_problem(place) if size <= _SMALL else "" if head[:2] == b"\x1f\x8b" else "it is no gzip file"
    if suffix == ".parquet":
        return "" if (head, tail[-4:]) == (b"PAR1", b"PAR1") else "it doesn't begin and end as a Parquet file"
    if suffix == ".json":
        return "" if tail.rstrip()[-1:] in (b"}", b"]") else "the JSON document doesn't end"
    if suffix == ".jsonl":
        return _last_line_problem(tail)
    return ""


def _gzip_problem(place: Path) -> str:
    try:
        with gzip.open(place) as opened:
            while opened.read(1 << 20):
                pass
    except (EOFError, OSError, zlib.error):
        return "the gzip file ends too early, or is damaged"
    return ""


def _last_line_problem(tail: bytes) -> str:
    *before, last = tail.rstrip(b"\n").rsplit(b"\n", 1)
    if not before and len(tail) >= _TAIL:
        return ""  # one long line, of which the end alone was read
    try:
        json.loads(last)
    except ValueError:
        return "the last line is cut off"
    return ""


def _first_rows(file: PublicFile, place: Path) -> str:
    """What the first rows lack; "" if they have the fields that they should have."""
    if not file.fields:
        return ""
    try:
        rows = [row for _, row in islice(_rows(file, place), 2)]
    except UserError as error:
        return str(error)
    if not rows:
        return f"it has no rows: is it the published file? {how(file, place)}"
    for row in rows:
        if missing := [name for name in file.fields if name not in row]:
            return f"its first rows have no `{missing[0]}` but {', '.join(map(str, row))[:120]}: it is another file"
    return ""


def _rows(file: PublicFile, place: Path) -> Iterator[tuple[int, Row]]:
    """The rows of a file, of which the first are read alone: no document is gone through before."""
    kind = place.with_suffix("").suffix if place.suffix in _PACKED else place.suffix
    if file.rows_at:
        return read_json_array(place, prefix=file.rows_at, reader=careful)
    readers = {".jsonl": read_jsonl, ".csv": read_csv, ".parquet": read_parquet}
    if kind in readers:
        return readers[kind](place)
    with place.open("rb") as opened:
        is_array = place.suffix == ".json" and opened.read(64).lstrip()[:1] == b"["
    return read_json_array(place, reader=careful) if is_array else read_json_dict(place, reader=careful)


def _whole(config: DownloadList, file: PublicFile, place: Path, known: _Known) -> str:
    """What a look at all of a file shows: another checksum, or another number of rows."""
    expected = file.sha256 or _told_by_hub(file, place)
    record = known.of(place)
    if expected:
        record.setdefault("sha256", {})
        if file.member not in record["sha256"]:
            record["sha256"][file.member] = _sha256(place, file.member)
        if record["sha256"][file.member] != expected:
            of = f" of {file.member} in it" if file.member else ""
            return f"checksum: its sha256{of} is {record['sha256'][file.member]}, published is {expected}"
    if file.rows is not None and place.suffix in (".jsonl", ".csv"):
        if "rows" not in record:
            record["rows"] = sum(1 for _ in (read_csv(place) if place.suffix == ".csv" else _lines(place)))
        if record["rows"] != file.rows:
            return f"rows: it has {record['rows']:,}, published are {file.rows:,}"
    return ""


def _sha256(place: Path, member: str) -> str:
    if not member:
        return sha256_of(place)
    try:
        with zipfile.ZipFile(place) as archive, archive.open(member) as opened:
            return sha256_of_blocks(iter(lambda: opened.read(1 << 20), b""))
    except (KeyError, zipfile.BadZipFile, EOFError, zlib.error) as error:
        return f"that of nothing ({error})"


def _lines(place: Path) -> Iterator[bytes]:
    with place.open("rb") as opened:
        yield from (line for line in opened if not line.isspace())


def _hub_records(file: PublicFile, place: Path) -> Path | None:
    """Where the Hub's client keeps what it knows of the files that it put beside this one; None if it put none."""
    if not file.hub:
        return None
    depth = len(Path(str(file.file)).parts)
    folder = place if not depth else place.parents[depth - 1]
    records = folder / ".cache" / "huggingface" / "download"
    return records if records.is_dir() else None


def _is_begun(file: PublicFile, place: Path) -> bool:
    """Whether the Hub's client was stopped while it fetched the file, or one of the folder."""
    if (records := _hub_records(file, place)) is None:
        return False
    within = records / str(file.file) if file.is_folder else (records / str(file.file)).parent
    return any(within.rglob("*.incomplete") if file.is_folder else within.glob("*.incomplete"))


def _told_by_hub(file: PublicFile, place: Path) -> str:
    """The sha256 that the Hub gave when it sent the file; "" if it gave none (small files have another hash)."""
    records = _hub_records(file, place)
    if records is None or file.is_folder:
        return ""
    with suppress(OSError, IndexError):
        etag = (records / f"{file.file}.metadata").read_text(encoding="utf-8").splitlines()[1].strip()
        return etag if len(etag) == 64 else ""
    return ""


def _check_model(file: PublicFile) -> FileState:
    from huggingface_hub import snapshot_download  # slow to import, as what follows
    from huggingface_hub.errors import IncompleteSnapshotError, LocalEntryNotFoundError

    kind, name = file.repository
    options: dict[str, Any] = {"repo_type": kind, "revision": file.revision or None, "allow_patterns": file.patterns}
    missing = FileState(Path(file.hub), "missing", how(file, Path(file.hub)), not file.optional)
    try:
        folder = Path(snapshot_download(name, **options, local_files_only=True))
    except IncompleteSnapshotError:
        return FileState(Path(file.hub), "partial", f"the Hub's client has begun it; {_again(file)}", not file.optional)
    except (LocalEntryNotFoundError, OSError):
        return missing
    files = [path for path in folder.rglob("*") if path.is_file()]
    if not files:
        return missing
    if lacking := _lacking_shards(folder):
        why = f"half downloaded: {lacking} is not in the Hub's cache; {_again(file)}"
        return FileState(folder, "partial", why, not file.optional)
    return FileState(folder, "there", "", not file.optional)


def _lacking_shards(folder: Path) -> str:
    """The first file of weights that an index of a snapshot names and that isn't there."""
    for index in folder.glob("*.index.json"):
        with suppress(OSError, ValueError, AttributeError):
            named = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
            others = [name for name in sorted(named) if not (folder / name).is_file()]
            if others and len(others) < len(named):
                return str(others[0])
    return ""


class _Known:
    """What reading a file whole has shown, until the file changes."""

    def __init__(self, path: Path | None) -> None:
        self._path, self._records, self._before = path, dict[str, dict[str, Any]](), "{}"
        if path is not None:
            with suppress(OSError, ValueError):
                self._records = json.loads(path.read_text(encoding="utf-8"))
                self._before = json.dumps(self._records)

    def of(self, place: Path) -> dict[str, Any]:
        """The record of a file as it is now; an empty one if it has changed."""
        stat = place.stat()
        now = {"bytes": stat.st_size, "mtime_ns": stat.st_mtime_ns}
        name = os.path.relpath(place, self._path.parent) if self._path else str(place)
        record = self._records.get(name, {})
        if not isinstance(record, dict) or {key: record.get(key) for key in now} != now:
            record = self._records[name] = dict(now)
        return record

    def save(self) -> None:
        """Keep what was found out; a folder that can't be written is no mistake."""
        if self._path is not None and self._records and json.dumps(self._records) != self._before:
            with suppress(OSError):
                write_json(self._path, self._records)

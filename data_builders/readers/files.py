"""Stream the rows of source files: JSONL, CSV and Parquet, also in `.gz` and one-file `.zip`."""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

from reflectune.core.errors import UserError, one_line
from reflectune.core.parquet import UNREADABLE, open_checked, stream_rows
from reflectune.core.paths import resolve_below
from reflectune.core.rejected import BadRow, Reject, stop
from reflectune.data_builders.readers.json_texts import HALF, has_half
from reflectune.data_builders.readers.rows import SourceRow

RowSource = Callable[[Path, Reject], Iterator[tuple[int, SourceRow]]]
"""A `read_*` function, maybe with options bound."""

BLOCK_BYTES = 4 << 20
_LONGEST_FIELD = 64 << 20
_ESCAPED = re.compile(r"[\udc80-\udcff]")
"""Bytes that are not UTF-8, as `surrogateescape` decodes them."""
_HUB_PART = re.compile(r"(.+)-\d{5}-of-\d{5}(?:-[0-9a-f]+)?\.parquet", re.IGNORECASE)


def read_jsonl(path: Path, reject: Reject = stop) -> Iterator[tuple[int, SourceRow]]:
    """Yield the objects of a JSONL file with their lines, from 1, without empty lines.

    A line that is cut off, is not UTF-8 or is not an object goes to `reject`.

    Raises:
        UserError: The file is missing, or its compression is damaged.
    """
    for block in line_blocks(path):
        yield from block_rows(block, reject)


def read_csv(path: Path, reject: Reject = stop) -> Iterator[tuple[int, SourceRow]]:
    """Yield the records of a CSV file with a header row, with the line of each. Every value is a text.

    A record with more or fewer values than the header has names goes to `reject`.

    Raises:
        UserError: The file is missing or has no header row, or that is not UTF-8 or has a name twice; or a quote that
            isn't closed makes one record of several lines.
    """
    with open_source(path) as file:
        lines = io.TextIOWrapper(file, encoding="utf-8-sig", errors="surrogateescape", newline="")
        previous_limit = csv.field_size_limit(_LONGEST_FIELD)
        try:
            reader = csv.reader(lines, strict=True)
            try:
                header = [name.strip() for name in next(reader, [])]
            except csv.Error as error:
                fix = "separate the columns with commas, and close each quote"
                raise UserError(f"{path}:1: the header is not CSV ({error}); {fix}") from error
            if problem := _not_utf8(header):
                raise UserError(f"{path}:1: the header {problem}; save the file as UTF-8")
            _check_header(path, header)
            while True:
                start = reader.line_num + 1
                try:
                    values = next(reader)
                except StopIteration:
                    return
                except csv.Error as error:
                    if reader.line_num > start:
                        raise UserError(
                            f"{path}: lines {start:,} to {reader.line_num:,} are one record that is not CSV ({error}): "
                            f"a quote isn't closed; fix line {start:,}"
                        ) from error
                    reject(BadRow(path, start, "", "", f"is not a CSV record ({error})", "fix the quotes of the line"))
                    continue
                problem, fix = _not_utf8(values), "save the file as UTF-8"
                if not problem and len(values) not in (0, len(header)):
                    problem, fix = f"has {len(values)} values for {len(header)} columns", "fix the line"
                if problem:
                    shown = (_ESCAPED.sub("\ufffd", value) for value in values)
                    row_id = SourceRow(dict(zip(header, shown, strict=False)), path, start).id
                    reject(BadRow(path, start, row_id, "", problem, fix))
                elif values:
                    yield start, SourceRow(dict(zip(header, values, strict=True)), path, start)
        finally:
            csv.field_size_limit(previous_limit)


def read_parquet(path: Path, reject: Reject = stop) -> Iterator[tuple[int, SourceRow]]:
    """Yield the rows of a Parquet file, or of every `*.parquet` in a folder by name, numbered from 1 in each file.

    Raises:
        UserError: A file is missing or damaged.
    """
    for part in source_files(path, ".parquet"):
        number = 0
        try:
            with open_checked(part) as file:
                for number, values in enumerate(stream_rows(file), start=1):
                    yield number, SourceRow(values, part, number)
        except UNREADABLE as error:
            raise damaged(part, number, error) from error


def source_files(path: Path, *suffixes: str) -> list[Path]:
    """Return `path` itself if it is a file, else the visible files in the folder that end in a suffix, by name.

    Suffixes are compared in lower case.

    Raises:
        UserError: A file is missing, or is a link that leads out of the folder.
    """
    if path.is_dir():
        files = sorted(file for file in visible(path, path.iterdir()) if file.name.lower().endswith(suffixes))
        if not files:
            raise UserError(f"no *{' or *'.join(suffixes)} in {path}; check the path, or download the files")
        for file in files:
            resolve_below(file.absolute(), path)
        return files
    if not path.is_file():
        raise UserError(f"source file not found: {path}; check the path, or download it")
    return [path]


def read_by_extension(
    source: Path, readers: Mapping[str, RowSource], name: str, reject: Reject
) -> Iterator[tuple[int, SourceRow]]:
    """Yield the rows of a file with the reader of its extension, or of a folder of Parquet files.

    Raises:
        UserError: The extension is unknown, or the file is missing.
    """
    if source.is_dir():
        return read_parquet(source, reject)
    file_name = source.name.lower().removesuffix(".gz")
    read = next((read for extension, read in readers.items() if file_name.endswith(extension)), None)
    if read is None:
        raise UserError(f"{source}: {name} is read from {', '.join(readers)} (also `.gz`) or a folder of Parquet files")
    return read(source, reject)


def visible(folder: Path, paths: Iterable[Path]) -> Iterator[Path]:
    """Yield the files among paths below a folder, without hidden ones and those in hidden folders.

    Systems put files of their own there, e.g. macOS `._train.parquet`.
    """
    for path in paths:
        if not any(part.startswith(".") for part in path.relative_to(folder).parts) and path.is_file():
            yield path


def one_path(source: Path | Mapping[str, Any], name: str) -> Path:
    """Return the path of a split; raise UserError if the source maps roles to files."""
    if isinstance(source, Mapping):
        raise UserError(f"{name} is read from one file or folder, not from the roles {', '.join(source)}")
    return source


def files_by_role(source: Path | Mapping[str, Any], roles: Sequence[str], name: str) -> dict[str, Path]:
    """Return the files of a split by role.

    Args:
        source: A mapping of roles to files, or the file of the first role.
        roles: The known roles; the first is needed.
        name: Name of the set, for an error.

    Raises:
        UserError: A role is unknown, or the first is missing.
    """
    files = source if isinstance(source, Mapping) else {roles[0]: source}
    if roles[0] not in files or not set(files) <= set(roles):
        given = ", ".join(map(str, files)) or "none"
        raise UserError(f"{name}'s roles are {', '.join(roles)}, and {roles[0]} is needed; found {given}")
    return {role: Path(path) for role, path in files.items()}


def several_splits(path: Path) -> str:
    """Return the splits of a folder's Parquet files, by the Hub's names (`train-00000-of-00002.parquet`).

    Returns "" if the path is not a folder, or its files belong to one split or have other names.

    Example:
        >>> several_splits(Path("EVQA_data"))
        'test, train, valid'
    """
    files = visible(path, path.iterdir()) if path.is_dir() else iter(())
    names = sorted({part[1] for file in files if (part := _HUB_PART.fullmatch(file.name))})
    return ", ".join(names) if len(names) > 1 else ""


@dataclass(frozen=True)
class LineBlock:
    """Whole lines of a file, as they are sent to a worker process.

    Attributes:
        file: The file.
        first_line: Number of the first line.
        offset: Bytes of the (unpacked) file before the block.
        data: The lines.
    """

    file: Path
    first_line: int
    offset: int
    data: bytes


def line_blocks(path: Path, size: int = BLOCK_BYTES, *, offset: int = 0, first_line: int = 1) -> Iterator[LineBlock]:
    """Split a file at line ends into blocks of at most `size` bytes (a longer line is a block of its own).

    The end of a block depends only on its start, so that a resumed run has the same blocks as a new one.

    Args:
        path: The file, which may be packed.
        size: Bytes of a block.
        offset: Start in bytes of the unpacked file: the end of an earlier block.
        first_line: Number of the line there.

    Raises:
        UserError: The file is missing, or its compression is damaged.
    """
    with open_source(path) as file:
        if offset:
            file.seek(offset)  # a packed file is unpacked up to there
        rest = b""
        while chunk := file.read(size - len(rest)):
            data = rest + chunk
            end = data.rfind(b"\n") + 1
            if not end:
                data += file.readline()
                end = len(data)
            yield LineBlock(path, first_line, offset, data[:end])
            first_line += data.count(b"\n", 0, end)
            offset += end
            rest = data[end:]
        if rest:
            yield LineBlock(path, first_line, offset, rest)


def block_rows(block: LineBlock, reject: Reject = stop) -> Iterator[tuple[int, SourceRow]]:
    """Yield the objects in a block of lines, with their line numbers."""
    for line, content in enumerate(block.data.split(b"\n"), block.first_line):
        if not content or content.isspace():
            continue
        try:
            values = json.loads(content.decode("utf-8-sig" if line == 1 else "utf-8"))
        except UnicodeDecodeError as error:
            problem = f"is not UTF-8 ({error.reason} at byte {error.start})"
            reject(BadRow(block.file, line, "", "", problem, "save the file as UTF-8"))
            continue
        except (ValueError, RecursionError) as error:
            problem = f"is not a whole JSON object ({error})"
            fix = "the line is damaged, or an object is spread over several: fix it, or download the file again"
            reject(BadRow(block.file, line, "", "", problem, fix))
            continue
        if has_half(values, content):
            reject(BadRow(block.file, line, "", "", *HALF))
        elif isinstance(values, dict):
            yield line, SourceRow(values, block.file, line)
        else:
            fix = "a line should be a JSON object; one array over the whole file is not JSONL"
            reject(BadRow(block.file, line, "", "", f"is {type(values).__name__}", fix))


class Meter:
    """Counts the bytes of source files that were read, before decompression."""

    def __init__(self) -> None:
        self.bytes = 0


_METERS: list[Meter] = []
"""Active meters, the innermost last."""


@contextmanager
def count_bytes() -> Iterator[Meter]:
    """Count the bytes that readers read in this block, for the progress of a stream of unknown length."""
    meter = Meter()
    _METERS.append(meter)
    try:
        yield meter
    finally:
        _METERS.remove(meter)


@contextmanager
def open_source(path: Path, *, counted: bool = True) -> Iterator[BinaryIO]:
    """Open a source file for reading as bytes, unpacked if its name ends in `.gz`, or `.zip` with one file inside.

    Args:
        path: The file.
        counted: False leaves the file out of the progress.

    Raises:
        UserError: The file is missing, its compression is damaged, or the zip file holds several files.
    """
    if not path.is_file():
        raise UserError(f"source file not found: {path}; check the path, or download it")
    try:
        with io.BufferedReader(_Counted(path, counted), buffer_size=1 << 20) as raw:
            if path.suffix.lower() == ".gz":
                with gzip.open(raw) as file:
                    yield cast(BinaryIO, file)
            elif path.suffix.lower() == ".zip":
                with _zip_member(path, raw) as file:
                    yield file
            else:
                yield raw
    except (EOFError, zlib.error, gzip.BadGzipFile, zipfile.BadZipFile) as error:
        raise UserError(f"{path} can't be unpacked: {error}; download it again") from error


class _Counted(io.FileIO):
    """A file that adds the bytes read to the meter."""

    def __init__(self, path: Path, counted: bool) -> None:
        super().__init__(path, "rb")
        self._meter = _METERS[-1] if counted and _METERS else None

    def readinto(self, buffer: Any) -> int | None:
        count = super().readinto(buffer)
        if self._meter is not None and count:
            self._meter.bytes += count
        return count


@contextmanager
def _zip_member(path: Path, raw: Any) -> Iterator[BinaryIO]:
    """Open the only file in a zip file as a stream. Nothing is unpacked to the disk."""
    with zipfile.ZipFile(raw) as archive:
        members = [info for info in archive.infolist() if not info.is_dir() and "__MACOSX" not in info.filename]
        if len(members) != 1:
            raise UserError(f"{path} holds {len(members)} files; unpack it and name the one to read")
        with archive.open(members[0]) as file:
            yield cast(BinaryIO, file)


def _not_utf8(values: Sequence[str]) -> str:
    """Return the problem of texts that were decoded with `surrogateescape`; "" if they were UTF-8."""
    found = next(filter(None, map(_ESCAPED.search, values)), None)
    return f"is not UTF-8 (it has the byte 0x{ord(found[0]) - 0xDC00:02x})" if found else ""


def _check_header(path: Path, header: list[str]) -> None:
    if not any(header):
        raise UserError(f"{path} is empty; a CSV file needs a first line with the names of its columns")
    if len(header) == 1 and (other := next((mark for mark in ";\t" if mark in header[0]), "")):
        name = "tabs" if other == "\t" else f"`{other}`"
        raise UserError(f"{path}:1: the columns are separated by {name}; save the file with commas between them")
    twice = sorted({name for name in header if header.count(name) > 1})
    if twice:
        raise UserError(f"{path}: the header names `{'`, `'.join(twice)}` twice; give each column its own name")


def damaged(path: Path, good: int, error: Exception) -> UserError:
    """Return the error of a file that can't be read after `good` records."""
    reason = one_line(error, 200)
    return UserError(f"{path} is damaged after record {good:,}: {reason}; download it again: the rest can't be read")

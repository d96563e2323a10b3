"""Stream the rows of JSON documents, arrays and dicts."""

from __future__ import annotations

import codecs
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import BinaryIO

import ijson

from reflectune.core.errors import UserError
from reflectune.core.rejected import BadRow, Reject, stop
from reflectune.data_builders.readers.files import damaged, open_source
from reflectune.data_builders.readers.json_texts import HALF, has_half, json_reader
from reflectune.data_builders.readers.rows import SourceRow

_NO_ARRAY = "it is not a JSON array; name a file with an object per line `.jsonl`"


def read_json_array(path: Path, reject: Reject = stop, prefix: str = "item") -> Iterator[tuple[int, SourceRow]]:
    """Yield the objects of a JSON array, numbered from 1, without loading the whole file.

    Args:
        path: The file.
        reject: Called with an element that is not an object.
        prefix: `ijson` prefix of the array: `item` for the document itself, `questions.item` for a field.

    Raises:
        UserError: The file is missing, has no array at `prefix`, or is damaged; rows after the damage can't be read.
    """
    reader = json_reader_of(path)
    with _open_json(path) as file:
        number = 0
        try:
            for number, value in enumerate(reader.items(file, prefix, use_float=True), 1):
                if reader is not ijson and has_half(value):
                    reject(BadRow(path, number, "", "", *HALF))
                elif isinstance(value, dict):
                    yield number, SourceRow(value, path, number)
                else:
                    reject(BadRow(path, number, "", "", f"is {type(value).__name__}", "it should be an object"))
        except ijson.JSONError as error:
            if prefix == "item" and _is_object(path):
                raise UserError(f"{path}: {_NO_ARRAY}") from error
            raise damaged(path, number, error) from error
    if not number and not _has_array(path, reader, prefix):
        field = prefix.removesuffix(".item")
        problem = f"its field `{field}` is not a JSON array; is it the published file?"
        raise UserError(f"{path}: {_NO_ARRAY if prefix == 'item' else problem}")


def read_json_dict(path: Path, reject: Reject = stop) -> Iterator[tuple[int, SourceRow]]:
    """Yield the values of a JSON dict, numbered from 1, without loading the whole file.

    A row's field `key` is the member's name. A value that is not an object becomes the field `value`.

    Args:
        path: The file.
        reject: Called with a member whose own field `key` differs from its name.

    Raises:
        UserError: The file is missing or damaged; rows after the damage can't be read.
    """
    reader = json_reader_of(path)
    with _open_json(path) as file:
        number = 0
        try:
            for number, (name, value) in enumerate(reader.kvitems(file, "", use_float=True), 1):
                if reader is not ijson and has_half([name, value]):
                    reject(BadRow(path, number, "", "", *HALF))
                    continue
                fields = value if isinstance(value, dict) else {"value": value}
                if fields.get("key", name) == name:
                    yield number, SourceRow({"key": name, **fields}, path, number)
                else:
                    problem = f"is {fields['key']!r} under the name {name!r}"
                    reject(BadRow(path, number, name, "key", problem, "make the two the same"))
        except ijson.JSONError as error:
            raise damaged(path, number, error) from error


def json_reader_of(path: Path) -> ModuleType:
    """Return the backend of `ijson` that keeps a file's texts unchanged; see `json_reader`."""
    with open_source(path, counted=False) as file:
        try:
            return json_reader(file)
        except (OSError, EOFError, zlib.error, zipfile.BadZipFile):
            return ijson  # reading the rows raises the error


def _has_array(path: Path, reader: ModuleType, prefix: str) -> bool:
    """Return True if there is an array at `prefix`, maybe an empty one."""
    with _open_json(path) as file:
        field = prefix.removesuffix("item").removesuffix(".")
        return any(event_prefix == field and event == "start_array" for event_prefix, event, _ in reader.parse(file))


def _is_object(path: Path) -> bool:
    with _open_json(path) as file:
        return file.read(64).lstrip().startswith(b"{")


@contextmanager
def _open_json(path: Path) -> Iterator[BinaryIO]:
    """Open a JSON document after its byte order mark, which Windows programs write and `ijson` refuses."""
    with open_source(path) as file:
        if file.read(len(codecs.BOM_UTF8)) != codecs.BOM_UTF8:
            file.seek(0)
        yield file

r"""Halves of surrogate pairs in JSON, such as `\ud83d` alone: no characters, which no row may have in its texts."""

from __future__ import annotations

import json
import re
from types import ModuleType
from typing import Any, BinaryIO

import ijson
import ijson.backends.python as careful

_HALF = rb"\\u[dD][89abAB][0-9a-fA-F]{2}", rb"\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_ANY = re.compile(rb"|".join(_HALF))
_ALONE = re.compile(rb"%b(?!\\u[dD][c-fC-F])|(?<!\\u[dD][89abAB][0-9a-fA-F]{2})%b" % _HALF)
_LENGTH = 6
"""Bytes of an escape."""

HALF = "holds half of a surrogate pair, which is no character", "write the whole character, or leave it out"
"""What is wrong with such a row, and what to do."""


def has_half(values: Any, content: bytes | None = None) -> bool:
    """Whether a text in a JSON value holds half of a pair: `json` joins halves that belong together, and keeps others.

    Args:
        values: The value.
        content: As it was written, if that is known: most rows can then be told at a glance.
    """
    if content is not None and not _ANY.search(content):
        return False
    try:
        json.dumps(values, ensure_ascii=False, default=str).encode()
    except UnicodeEncodeError:
        return True
    return False


def json_reader(file: BinaryIO, chunk: int = 1 << 20) -> ModuleType:
    """The part of `ijson` that reads this document's texts as they are written.

    Its fast part makes `?` of half a pair, or another character, or raises `UnicodeDecodeError`; its slow one keeps it.

    Args:
        file: The document, from its start; it is read to its end.
        chunk: Bytes that are looked at together.
    """
    kept, skipped = b"", 0
    while data := file.read(chunk):
        window = kept + data
        # What begins in the last 12 bytes is looked at with the next ones, since what follows an escape decides.
        if any(skipped <= found.start() < len(window) - 2 * _LENGTH for found in _ALONE.finditer(window)):
            return careful
        kept = window[-3 * _LENGTH :]
        skipped = max(0, len(kept) - 2 * _LENGTH)
    return careful if any(found.start() >= skipped for found in _ALONE.finditer(kept)) else ijson

r"""Find lone surrogates in JSON, such as `\ud83d` alone, which are not characters."""

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

HALF = "holds half of a surrogate pair, which is not a character", "write the whole character, or leave it out"
"""Problem of such a row, and its fix."""


def has_half(values: Any, content: bytes | None = None) -> bool:
    """Return True if a text in a JSON value holds half of a pair. `json` joins matching halves and keeps others.

    Args:
        values: The value.
        content: Its JSON, if known, for a fast path.
    """
    if content is not None and not _ANY.search(content):
        return False
    try:
        json.dumps(values, ensure_ascii=False, default=str).encode()
    except UnicodeEncodeError:
        return True
    return False


def json_reader(file: BinaryIO, chunk: int = 1 << 20) -> ModuleType:
    """Return the backend of `ijson` that keeps this document's texts unchanged.

    The fast backend replaces half a pair by another character, or raises `UnicodeDecodeError`; pure Python keeps it.

    Args:
        file: The document; it is read from its start to its end.
        chunk: Bytes per read.
    """
    tail, skipped = b"", 0
    while data := file.read(chunk):
        window = tail + data
        # Escapes in the last 12 bytes are searched with the next chunk, which holds the bytes that follow them.
        if any(skipped <= found.start() < len(window) - 2 * _LENGTH for found in _ALONE.finditer(window)):
            return careful
        tail = window[-3 * _LENGTH :]
        skipped = max(0, len(tail) - 2 * _LENGTH)
    return careful if any(found.start() >= skipped for found in _ALONE.finditer(tail)) else ijson

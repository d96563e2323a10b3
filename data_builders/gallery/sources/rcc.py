"""Qt's binary resource files (.rcc): a tree of names, and the files in it."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from reflectune.core.errors import UserError

_FOLDER, _DEFLATED, _ZSTANDARD = 2, 1, 4
_LARGEST = 64 * 2**20
"""Bytes that a file may have when it is unpacked."""


def read_resources(path: Path) -> Iterator[tuple[str, bytes]]:
    """The files of a resource file: of each its path, without a leading slash, and its bytes.

    Raises:
        UserError: It is no resource file, is cut off, or has a file that is compressed in a way not known here.
    """
    data = path.read_bytes()
    try:
        if data[:4] != b"qres":
            raise ValueError("it does not begin with `qres`")
        version, tree, files, names = struct.unpack(">4I", data[4:20])
        yield from _walk(data, (22 if version >= 2 else 14, tree, files, names), 0, PurePosixPath())
    except (ValueError, struct.error, IndexError, zlib.error, RecursionError) as error:
        raise UserError(f"{path} is no whole Qt resource file: {error}") from error


def _walk(
    data: bytes, layout: tuple[int, int, int, int], node: int, parent: PurePosixPath
) -> Iterator[tuple[str, bytes]]:
    size, tree, files, names = layout
    at = tree + node * size
    name_at, flags = struct.unpack(">IH", data[at : at + 6])
    here = parent / _name(data, names + name_at) if node else parent
    if flags & _FOLDER:
        count, first = struct.unpack(">II", data[at + 6 : at + 14])
        for child in range(first, first + count):
            if child <= node:
                raise ValueError("its tree has a circle")
            yield from _walk(data, layout, child, here)
        return
    (offset,) = struct.unpack(">I", data[at + 10 : at + 14])
    (length,) = struct.unpack(">I", data[files + offset : files + offset + 4])
    begin = files + offset + 4
    content = data[begin : begin + length]
    if len(content) != length:
        raise ValueError(f"{here} is cut off")
    if flags & _ZSTANDARD:
        raise ValueError(f"{here} is compressed by Zstandard, which is not read here")
    if flags & _DEFLATED:
        unpacker = zlib.decompressobj()
        content = unpacker.decompress(content[4:], _LARGEST)
        if unpacker.unconsumed_tail:
            raise ValueError(f"{here} is larger than {_LARGEST} bytes")
    if ".." in here.parts or here.is_absolute():
        raise ValueError(f"{here} leads out of it")
    yield str(here), content


def _name(data: bytes, at: int) -> str:
    (length,) = struct.unpack(">H", data[at : at + 2])
    name = data[at + 6 : at + 6 + 2 * length].decode("utf-16-be")
    if not name or "/" in name:
        raise ValueError(f"it has a file called {name!r}")
    return name

"""GCompris' images (animals, landmarks, planets, things that a word names), from its resource files.

These are Qt's binary resource files (.rcc): a tree of names, and the files in it.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from reflectune.core.durable import write_atomically
from reflectune.examples.pocket.gallery.sources.images import SourceImage

RESOURCES = "usr/share/gcompris-qt/rcc"
_ROOT = "gcompris/src/activities/"
_FOLDERS = {
    # folder below the activities: category and style; a file's name is the thing's
    "lang/resource/words_sample": ("word", "drawing"),
    "erase/resource": ("animal", "photograph"),
    "explore_farm_animals/resource/animals": ("animal", "photograph"),
    "categorization/resource/images/monuments": ("landmark", "photograph"),
    "solar_system/resource": ("planet", "photograph"),
}
_BOARDS = {"explore_monuments": "landmark", "explore_world_animals": "animal"}
_TITLED = re.compile(r'"title": qsTr\("([^"]+)"\).*?"image2": "qrc:/([^"]+)"', re.DOTALL)
_IS_FOLDER, _DEFLATED = 2, 1
"""Flags of a node of the tree."""


def read_activities(folder: Path) -> Iterator[SourceImage]:
    """Return the images of the unpacked package, after unpacking its resource files into `resources`."""
    root = folder / "resources"
    for resource in sorted((folder / RESOURCES).glob("*.rcc")):
        for name, content in read_resources(resource):
            file = root / name
            if name.endswith((".webp", ".qml")) and not file.is_file():
                write_atomically(file, content)
    activities = root / _ROOT
    for below, (category, style) in _FOLDERS.items():
        for file in sorted((activities / below).glob("*.webp")):
            yield _image(file, activities, split_name(file.stem), category, style)
    for activity, category in _BOARDS.items():
        for board in sorted((activities / activity / "resource/board").glob("*.qml")):
            for title, path in _TITLED.findall(board.read_text(encoding="utf-8")):
                file = root / path
                if file.is_file() and file.suffix == ".webp":
                    yield _image(file, activities, title, category, "photograph")


def split_name(stem: str) -> str:
    """Split a file's name into words: `leaningTowerOfPisa` is `leaning tower of pisa`."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])|[_-]", " ", stem).lower()


def _image(file: Path, activities: Path, name: str, category: str, style: str) -> SourceImage:
    path = file.relative_to(activities).as_posix().replace("/resource", "")
    hand = "gcompris " + path.split("/")[0]
    return SourceImage(f"gcompris/{path[:-5]}", name, category, "gcompris", hand, style, file)  # type: ignore[arg-type]


def read_resources(path: Path) -> Iterator[tuple[str, bytes]]:
    """Return the files of a Qt resource file: the path of each, without a leading slash, and its bytes."""
    data = path.read_bytes()
    version, tree, files, names = struct.unpack_from(">4I", data, 4)
    yield from _walk(data, (22 if version >= 2 else 14, tree, files, names), 0, PurePosixPath())


def _walk(
    data: bytes, layout: tuple[int, int, int, int], node: int, parent: PurePosixPath
) -> Iterator[tuple[str, bytes]]:
    """Yield the files below a node; `layout` is a node's size, and the offsets of tree, contents and names."""
    size, tree, files, names = layout
    start = tree + node * size
    name_offset, flags = struct.unpack_from(">IH", data, start)
    path = parent / _name(data, names + name_offset) if node else parent
    if flags & _IS_FOLDER:
        count, first = struct.unpack_from(">II", data, start + 6)
        for child in range(first, first + count):
            yield from _walk(data, layout, child, path)
        return
    (offset,) = struct.unpack_from(">I", data, start + 10)
    (length,) = struct.unpack_from(">I", data, files + offset)
    begin = files + offset + 4
    content = data[begin : begin + length]
    yield str(path), zlib.decompress(content[4:]) if flags & _DEFLATED else content


def _name(data: bytes, offset: int) -> str:
    (length,) = struct.unpack_from(">H", data, offset)
    return data[offset + 6 : offset + 6 + 2 * length].decode("utf-16-be")

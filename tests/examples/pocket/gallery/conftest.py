"""Hand-made sources: folders laid out as the packages are, with a few drawn images and true articles."""

import json
import struct
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from PIL import Image, ImageDraw

from reflectune.examples.pocket.gallery.collecting import Collection
from reflectune.examples.pocket.gallery.sources import emoji_and_flags, reference_works, stamps, wordnet

ARTICLES = {
    "Lion": (
        "The lion is a large cat of the genus Panthera. It is native to Africa and India. Males have a mane. "
        "Lions live in groups.",
        "Large cat native to Africa and India",
    ),
    "Turkey": ("Turkey is a country in West Asia. Its capital is Ankara.", "Country in West Asia"),
    "Banana": ("A banana is an edible fruit. It is grown in many lands.", "Tropical fruit"),
    "Violin": (
        "The violin, sometimes known as a fiddle, is a wooden instrument. Most violins have four strings.",
        "Bowed string instrument",
    ),
    "France": ("France is a country in Western Europe. Its capital, Paris, is its largest city.", "Country in Europe"),
    "Spain": ("Spain is a country in Southwestern Europe.", "Country in Europe"),
    "Paris": ("Paris is the capital of France. It lies on the River Seine.", "Capital of France"),
    "Hammer": ("A hammer is a tool. It drives nails into wood.", "Tool"),
    "Mona Lisa": ("The Mona Lisa is a painting by Leonardo da Vinci.", "Painting by Leonardo da Vinci"),
}

NOUNS = """\
  1 This line is the licence.
00000001 03 n 01 animal 0 000 | a living organism
00000002 05 n 02 lion 0 Panthera_leo 0 002 @ 00000010 n 0000 #m 00000003 n 0000 | a large cat
00000003 05 n 02 Panthera 0 genus_Panthera 0 001 #m 00000004 n 0000 | lions and others
00000004 05 n 02 Felidae 0 family_Felidae 0 001 #m 00000005 n 0000 | cats
00000005 05 n 02 Carnivora 0 order_Carnivora 0 001 #m 00000006 n 0000 | cats and dogs
00000006 05 n 02 Mammalia 0 class_Mammalia 0 000 | mammals
00000007 05 n 01 turkey 0 000 | a large bird
00000008 15 n 01 Turkey 0 000 | a republic
00000009 15 n 01 country 0 000 | a territory
00000010 05 n 01 cat 0 001 @ 00000001 n 0000 | a feline
00000011 13 n 01 banana 0 001 @ 00000012 n 0000 | a fruit
00000012 13 n 01 fruit 0 000 | food
00000013 06 n 02 violin 0 fiddle 0 001 @ 00000014 n 0000 | played with a bow
00000014 06 n 01 bowed_stringed_instrument 0 000 | stringed
00000015 06 n 01 instrument 0 000 | a device
00000016 06 n 01 hammer 0 001 @ 00000017 n 0000 | a tool
00000017 06 n 01 tool 0 000 | an implement
"""


def country_page(name: str, code: str, capital: str, neighbours: str, currency: str) -> dict[str, Any]:
    """A country's page as the Factbook has it."""
    return {
        "Geography": {
            "Location": {"text": f"Western Europe, bordering others of <b>{name}</b>"},
            "Area": {"total ": {"text": "100,000 sq km"}},
            "Elevation": {"highest point": {"text": "Mont Blanc 4,810 m"}},
            "Land boundaries": {"border countries": {"text": neighbours}},
        },
        "People and Society": {
            "Population": {"total": {"text": "50,000,000 (2025 est.)"}},
            "Languages": {"Languages": {"text": "French (official) 100%"}},
            "Nationality": {"adjective": {"text": f"{name}ish"}},
        },
        "Government": {
            "Country name": {"conventional short form": {"text": name}},
            "Capital": {"name": {"text": capital}},
            "Independence": {"text": "4 July 1776 (from others)"},
        },
        "Economy": {"Exchange rates": {"Currency": {"text": currency}}},
        "Communications": {"Internet country code": {"text": code}},
    }


def draw(path: Path, colour: str, shape: str, mode: str = "RGBA") -> None:
    """An image of one shape on nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.new(mode, (120, 100), (0, 0, 0, 0) if mode == "RGBA" else "white")
    canvas = ImageDraw.Draw(image)
    getattr(canvas, shape)((10, 10, 109, 89), fill=colour)
    image.save(path)


def draw_flag(path: Path, stripes: tuple[str, ...], size: tuple[int, int] = (120, 90)) -> None:
    """A flag of horizontal stripes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.new("RGB", size)
    height = size[1] // len(stripes)
    for number, colour in enumerate(stripes):
        image.paste(colour, (0, number * height, size[0], size[1]))
    image.save(path)


def pack_resources(files: Mapping[str, bytes]) -> bytes:
    """A Qt resource file (format 1) with these files in one folder; every second one is deflated."""
    names, name_at = b"", {}
    for name in ("", "folder", *files):
        name_at[name] = len(names)
        names += struct.pack(">HI", len(name), 0) + name.encode("utf-16-be")
    data, at = b"", []
    for number, content in enumerate(files.values()):
        at.append(len(data))
        packed = struct.pack(">I", len(content)) + zlib.compress(content) if number % 2 else content
        data += struct.pack(">I", len(packed)) + packed
    tree = struct.pack(">IHII", 0, 2, 1, 1) + struct.pack(">IHII", name_at["folder"], 2, len(files), 2)
    for number, name in enumerate(files):
        tree += struct.pack(">IHHHI", name_at[name], number % 2, 0, 0, at[number])
    head = 20
    offsets = (1, head, head + len(tree), head + len(tree) + len(data))
    return b"qres" + struct.pack(">4I", *offsets) + tree + data + names


@pytest.fixture
def sources(tmp_path: Path) -> Collection:
    return write_sources(tmp_path / "cache")


def write_sources(root: Path) -> Collection:
    """Write small sources of every kind but fonts."""
    folders = {name: root / name for name in (
        "wikipedia", "wordnet", "emoji_names", "factbook", "fluent", "tuxpaint", "plain_flags", "glossy_flags",
    )}  # fmt: skip
    rows = {
        title: {"title": title, "extract": extract, "description": description, "topic": "Arts"}
        for title, (extract, description) in ARTICLES.items()
    }
    write(folders["wikipedia"] / reference_works.SUMMARIES, json.dumps(rows))
    write(folders["wordnet"] / wordnet.FILE, NOUNS)
    emojis = [("lion", "1F981", "animal-mammal"), ("turkey", "1F983", "animal-bird"), ("hammer", "1F528", "tool")]
    emojis += [("banana", "1F34C", "food-fruit"), ("violin", "1F3BB", "musical-instrument")]
    known = [
        {"annotation": name, "hexcode": code, "subgroups": subgroup, "group": "any", "skintone": "", "emoji": "x"}
        for name, code, subgroup in emojis
    ]
    write(folders["emoji_names"] / emoji_and_flags.NAMES, json.dumps(known))
    for (_, code, _), colour in zip(emojis, ("orange", "brown", "grey", "yellow", "red"), strict=True):
        draw(folders["fluent"] / emoji_and_flags.RENDERED / f"{code.lower()}.webp", colour, "ellipse")
    stamped = {"animals/lion": "orange", "food/fruit/banana": "olive", "hobbies/music/violin": "red"}
    for place, colour in {**stamped, "household/tools/hammer": "grey"}.items():
        draw(folders["tuxpaint"] / stamps.FOLDER / f"{place}.png", colour, "rectangle")
        write(folders["tuxpaint"] / stamps.FOLDER / f"{place}.txt", f"A {Path(place).name}.")
    stripes = {"fr": ("blue", "white", "red"), "es": ("red", "yellow", "red")}
    for letters, colours in stripes.items():
        for name, size in (("plain_flags", (120, 90)), ("glossy_flags", (160, 99))):
            draw_flag(folders[name] / emoji_and_flags.FLAG_FOLDERS[name] / f"{letters}.png", colours, size)
    pages = {
        "europe/fr": country_page("France", ".fr", "Paris", "Spain 600 km; Italy 500 km", "euros (EUR) per"),
        "europe/sp": country_page("Spain", ".es", "Madrid", "France 600 km; Portugal 500 km", "pesetas (ESP) per"),
    }
    for place, page in pages.items():
        write(folders["factbook"] / reference_works.FACTBOOK / f"{place}.json", json.dumps(page))
    return Collection(folders)


def write(path: Path, text: str) -> None:
    """Write a file, and the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")

"""Each source is read in its package's layout, and damage is one clear error."""

import string
from pathlib import Path

import pytest
from PIL import Image

from reflectune.core.config import find_problems
from reflectune.core.errors import UserError
from reflectune.examples.pocket.build_gallery import GalleryConfig
from reflectune.examples.pocket.gallery.sources.gcompris import RESOURCES, read_activities, read_resources
from reflectune.examples.pocket.gallery.sources.images import SourceImage, Unusable, read_image
from reflectune.examples.pocket.gallery.sources.packages import SOURCES
from reflectune.examples.pocket.gallery.sources.reference_works import (
    Article,
    summary_section,
)
from reflectune.examples.pocket.gallery.sources.stamps import caption_name

from .conftest import draw, draw_flag, pack_resources, write


def row(title: str, extract: str = "Text.") -> dict[str, str]:
    return {"title": title, "extract": extract, "description": "", "topic": ""}


@pytest.mark.parametrize(("sentences", "paragraphs"), [(1, [1]), (3, [3]), (4, [4]), (5, [3, 2]), (7, [3, 4])])
def test_no_sentence_of_a_summary_stands_alone_behind_others(sentences: int, paragraphs: list[int]) -> None:
    summary = " ".join(f"It has part {word}." for word in "alpha beta gamma delta epsilon zeta eta".split()[:sentences])
    text = summary_section(Article("A", summary, "", "")).text
    assert [part.count(".") for part in text.split("\n\n")] == paragraphs
    assert " ".join(text.split()) == summary


@pytest.mark.parametrize(
    ("caption", "name"),
    [
        ("A pair of cherries.", "cherries"),
        ("Mars—the red planet. It’s just beyond earth.", "mars"),
        ("A ripe, red tomato.", "ripe"),
        ("A yellow lemon.", "lemon"),
        ("Remember to flush the toilet and wash your hands with soap!", ""),
        ("", ""),
    ],
)
def test_a_caption_names_a_thing_or_nothing(caption: str, name: str) -> None:
    assert caption_name(caption) == name


def draw_image(file: Path, category: str = "animal") -> SourceImage:
    return SourceImage("source/name", "name", category, "source", "hand", "drawing", file)


def test_what_is_transparent_is_white_and_cut_off(tmp_path: Path) -> None:
    draw(tmp_path / "a.png", "red", "ellipse")
    image = read_image(draw_image(tmp_path / "a.png"))
    assert image.mode == "RGB"
    assert image.size == (116, 116)  # 100 wide, without its margin, and a border of 8
    assert image.getpixel((0, 0)) == (255, 255, 255)
    assert image.getpixel((58, 58)) == (255, 0, 0)


def test_a_flags_white_stripe_stays(tmp_path: Path) -> None:
    draw_flag(tmp_path / "pl.png", ("white", "red"))
    draw_flag(tmp_path / "mc.png", ("red", "white"))
    poland, monaco = (read_image(draw_image(tmp_path / f"{name}.png", "flag")) for name in ("pl", "mc"))
    assert poland.size == monaco.size
    middle = poland.width // 2
    assert [poland.getpixel((middle, y)) for y in (middle - 20, middle + 20)] == [(255, 255, 255), (255, 0, 0)]
    assert [monaco.getpixel((middle, y)) for y in (middle - 20, middle + 20)] == [(255, 0, 0), (255, 255, 255)]


def test_an_image_that_cannot_be_shown_is_named(tmp_path: Path) -> None:
    file = tmp_path / "a.png"
    write(file, "no image")
    with pytest.raises(UserError, match=r"image source/name is not a readable image: .*a\.png"):
        read_image(draw_image(file))
    Image.new("RGBA", (100, 100), "white").save(file)
    with pytest.raises(UserError, match="shows nothing"):
        read_image(draw_image(file))
    Image.new("RGB", (71, 20), "red").save(file)
    with pytest.raises(Unusable, match="71 by 20 pixels, at least 72"):
        read_image(draw_image(file))


def test_a_resource_file_is_read_as_it_was_packed(tmp_path: Path) -> None:
    files = {"a.webp": b"one", "b.qml": b"two " * 100}
    (tmp_path / "x.rcc").write_bytes(pack_resources(files))
    assert dict(read_resources(tmp_path / "x.rcc")) == {f"folder/{name}": content for name, content in files.items()}


def test_activities_without_images_are_none(tmp_path: Path) -> None:
    (tmp_path / RESOURCES).mkdir(parents=True)
    (tmp_path / RESOURCES / "lang.rcc").write_bytes(pack_resources({"a.webp": b"one"}))
    assert list(read_activities(tmp_path)) == []
    assert (tmp_path / "resources/folder/a.webp").read_bytes() == b"one"


def test_every_package_is_pinned() -> None:
    for source in SOURCES.values():
        assert len(source.package.sha256) == 64
        assert set(source.package.sha256) <= set(string.hexdigits.lower())
        assert source.package.licence
        assert source.credit


def test_an_unknown_source_is_named() -> None:
    (problem,) = find_problems(GalleryConfig, {"output": "gallery", "sources": ["wikipedia", "paintings"]})
    assert problem.startswith("`sources`: paintings unknown; there are wikipedia")

from __future__ import annotations

import random
import warnings
from pathlib import Path

import pytest
from PIL import Image

from reflectune.core.errors import UserError
from reflectune.core.images import load_image


def test_an_image_is_read_as_rgb_relative_to_its_root(tmp_path: Path) -> None:
    Image.new("L", (3, 2), 128).save(tmp_path / "grey.png")
    image = load_image("grey.png", root=tmp_path)
    assert (image.mode, image.size, image.getpixel((0, 0))) == ("RGB", (3, 2), (128, 128, 128))


def test_a_bad_image_names_the_file_and_who_needs_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = tmp_path / "whole.jpg"
    Image.effect_noise((64, 64), 50).save(whole)
    truncated = tmp_path / "truncated.jpg"
    truncated.write_bytes(whole.read_bytes()[:400])
    (tmp_path / "text.jpg").write_text("no image")
    for name, said in (("none.jpg", "not found"), ("truncated.jpg", "unreadable"), ("text.jpg", "unreadable")):
        with pytest.raises(UserError, match=rf"{said}: .*{name} \(needed by question 7\)"):
            load_image(tmp_path / name, needed_by="question 7")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    with pytest.raises(UserError, match="too large"):
        load_image(whole)


@pytest.mark.parametrize("colors", [2, 16, 256])
def test_a_transparent_palette_gives_the_same_pixels_without_a_warning(tmp_path: Path, colors: int) -> None:
    draw = random.Random(colors)
    image = Image.new("P", (16, 16))
    image.putpalette(bytes(draw.randrange(256) for _ in range(3 * colors)))
    image.putdata([draw.randrange(colors) for _ in range(256)])
    image.save(tmp_path / "p.png", transparency=bytes(draw.randrange(256) for _ in range(colors)))
    with pytest.warns(UserWarning, match="Palette images with Transparency"):
        before = Image.open(tmp_path / "p.png").convert("RGB")

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        after = load_image("p.png", root=tmp_path)

    assert after.mode == "RGB"
    assert after.tobytes() == before.tobytes()

"""Colours are named as a person would, or not at all."""

import pytest
from PIL import Image, ImageDraw

from reflectune.examples.pocket.gallery.colours import Edge, colour_name, edge_colour, has_colour, main_colour


@pytest.mark.parametrize(
    ("pixel", "name"),
    [
        ((200, 16, 46), "red"),
        ((255, 205, 0), "yellow"),
        ((0, 120, 60), "green"),
        ((0, 40, 104), "blue"),
        ((255, 140, 0), "orange"),
        ((120, 70, 30), "brown"),
        ((255, 170, 190), "pink"),
        ((120, 40, 180), "purple"),
        ((10, 10, 10), "black"),
        ((255, 255, 255), "white"),
        ((128, 128, 128), "grey"),
    ],
)
def test_a_colour_has_a_name(pixel: tuple[int, int, int], name: str) -> None:
    assert colour_name(*pixel) == name


def disc(colour: str, outline: str = "") -> Image.Image:
    image = Image.new("RGB", (200, 200), "white")
    ImageDraw.Draw(image).ellipse((20, 20, 180, 180), fill=colour, outline=outline or None, width=6)
    return image


def test_the_background_and_an_outline_do_not_count() -> None:
    assert main_colour(disc("red")) == "red"
    assert main_colour(disc("red", "black")) == "red"
    assert main_colour(disc("black")) == "black"
    assert main_colour(Image.new("RGB", (50, 50), "white")) == ""


def flag() -> Image.Image:
    image = Image.new("RGB", (120, 90), "red")
    image.paste("white", (0, 0, 120, 45))
    return image


@pytest.mark.parametrize(("edge", "colour"), [("top", "white"), ("bottom", "red"), ("left", "")])
def test_a_stripe_has_one_colour(edge: Edge, colour: str) -> None:
    assert edge_colour(flag(), edge) == colour


def test_a_colour_is_there_or_not_or_unsure() -> None:
    assert has_colour(flag(), "red") is True
    assert has_colour(flag(), "blue") is False
    spotted = flag()
    spotted.paste("blue", (0, 0, 15, 15))
    assert has_colour(spotted, "blue") is None

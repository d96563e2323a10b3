"""Drawing an entity: its kind in its colour on its ground, its sign, balloons, and the day's weather."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
from PIL import Image, ImageDraw

from reflectune.examples.miniature.world.entities import Looks

_SIDE: Final = 96
"""Pixels of a side of each image."""

Colour = tuple[int, int, int]
Box = tuple[float, float, float, float]

COLOURS: dict[str, Colour] = {
    "red": (208, 46, 42),
    "green": (42, 150, 56),
    "blue": (44, 78, 205),
    "yellow": (240, 214, 44),
    "purple": (142, 54, 172),
    "orange": (242, 132, 30),
    "white": (246, 246, 246),
    "black": (34, 34, 38),
}
GROUNDS: dict[str, Colour] = {
    "grass": (112, 184, 82),
    "sand": (228, 206, 150),
    "snow": (238, 243, 252),
    "water": (84, 146, 220),
    "rock": (132, 126, 122),
}
SKIES: tuple[tuple[Colour, Colour], ...] = (
    ((150, 196, 240), (214, 234, 248)),  # day
    ((246, 190, 150), (250, 226, 196)),  # dusk
    ((176, 184, 202), (222, 226, 234)),  # overcast
)
BALLOON_COLOURS: tuple[Colour, ...] = ((236, 96, 140), (92, 190, 200), (250, 170, 60), (150, 120, 220))
DARK: Colour = (52, 44, 44)


class Pen:
    """A canvas of `size` pixels on which the subject's own frame is 100 units wide, its feet at (0, 0), y upwards."""

    def __init__(self, image: Image.Image, feet: tuple[float, float], scale: float, flip: bool, fill: Colour) -> None:
        self._draw = ImageDraw.Draw(image)
        self._feet, self._scale, self._flip = feet, scale, -1 if flip else 1
        self.fill = fill
        self.shade = _darken(fill, 0.72) if sum(fill) > 150 else (84, 84, 92)
        self.edge = _darken(fill, 0.5) if sum(fill) > 150 else (110, 110, 118)
        self._width = max(1, round(scale * 1.3))

    def _at(self, x: float, y: float) -> tuple[float, float]:
        return self._feet[0] + self._flip * x * self._scale, self._feet[1] - y * self._scale

    def polygon(self, points: Sequence[tuple[float, float]], fill: Colour | None = None) -> None:
        """Fill an outline through points in the subject's frame."""
        self._draw.polygon([self._at(*p) for p in points], fill=fill or self.fill, outline=self.edge, width=self._width)

    def box(self, x0: float, y0: float, x1: float, y1: float, fill: Colour | None = None) -> None:
        """Fill a rectangle."""
        self.polygon([(x0, y0), (x1, y0), (x1, y1), (x0, y1)], fill)

    def disc(self, x: float, y: float, rx: float, ry: float | None = None, fill: Colour | None = None) -> None:
        """Fill an ellipse around (x, y)."""
        (cx, cy), ry = self._at(x, y), ry or rx
        box = (cx - rx * self._scale, cy - ry * self._scale, cx + rx * self._scale, cy + ry * self._scale)
        self._draw.ellipse(box, fill=fill or self.fill, outline=self.edge, width=self._width)

    def line(self, points: Sequence[tuple[float, float]], width: float, fill: Colour | None = None) -> None:
        """Draw a stroke through points; `width` is in the subject's units."""
        path = [self._at(*p) for p in points]
        self._draw.line(path, fill=fill or self.edge, width=max(1, round(width * self._scale)), joint="curve")


def draw(looks: Looks, balloons: int, rng: random.Random) -> Image.Image:
    """Draw one image of an entity, with its own pose, colour jitter, scale, clutter and occlusion.

    Args:
        looks: Attributes to draw.
        balloons: Number of balloons in the sky.
        rng: Generator of everything that varies between two images of the same entity.

    Returns:
        An RGB image of 96 × 96 pixels.
    """
    side = _SIDE * 2  # drawn at twice the size and reduced, which smooths the edges
    image = Image.new("RGB", (side, side))
    sign_side = rng.choice((-1, 1))
    horizon = side * rng.uniform(0.66, 0.74)
    _sky(image, horizon, rng)
    _ground(image, looks.ground, horizon, rng)
    feet = (side * (0.5 - 0.12 * sign_side) + side * rng.uniform(-0.03, 0.03), horizon + side * rng.uniform(0.06, 0.14))
    scale = side / 100 * rng.uniform(0.80, 0.98)
    pen = Pen(image, feet, scale, rng.random() < 0.5, _jitter(COLOURS[looks.colour], 14, rng))
    KINDS[looks.kind](pen)
    _sign(image, looks.mark, sign_side, horizon, rng)
    _balloons(image, balloons, -sign_side, rng)
    if rng.random() < 0.35:
        _foreground(image, looks.ground, rng)
    image = image.resize((_SIDE, _SIDE), Image.Resampling.BOX)
    noise = np.random.default_rng(rng.getrandbits(32)).integers(-5, 6, (_SIDE, _SIDE, 3))
    return Image.fromarray(np.clip(np.asarray(image, np.int16) + noise, 0, 255).astype(np.uint8))


def _jitter(colour: Colour, amount: int, rng: random.Random) -> Colour:
    red, green, blue = (max(0, min(255, value + rng.randint(-amount, amount))) for value in colour)
    return red, green, blue


def _sky(image: Image.Image, horizon: float, rng: random.Random) -> None:
    top, bottom = (np.array(_jitter(colour, 10, rng), np.float32) for colour in rng.choice(SKIES))
    height = int(horizon) + 1
    ramp = np.linspace(0, 1, height, dtype=np.float32)[:, None, None]
    strip = (top * (1 - ramp) + bottom * ramp).astype(np.uint8)  # (height, 1, 3)
    image.paste(Image.fromarray(np.broadcast_to(strip, (height, image.width, 3)).copy()), (0, 0))
    pen = ImageDraw.Draw(image)
    for _ in range(rng.randint(0, 2)):
        x, y, radius = rng.uniform(0, image.width), rng.uniform(0.05, 0.4) * horizon, image.width * 0.035
        for shift in (-1.2, 0, 1.2):
            grow = 1.35 if shift == 0 else 1.0
            box = _round_box(x + shift * radius, y, radius * grow, radius * grow * 0.7)
            pen.ellipse(box, fill=_jitter((246, 248, 250), 3, rng))


def _ground(image: Image.Image, ground: str, horizon: float, rng: random.Random) -> None:
    pen, side, base = ImageDraw.Draw(image), image.width, _jitter(GROUNDS[ground], 9, rng)
    pen.rectangle((0, horizon, side, side), fill=base)
    darker, lighter = _shift(base, -42), _shift(base, 26)
    if ground == "water":
        for row in range(int(horizon) + 6, side, 11):
            start = rng.randint(0, 16)
            for left in range(-start, side, 34):
                pen.arc((left, row, left + 18, row + 9), 20, 160, fill=lighter, width=3)
                pen.arc((left + 17, row + 3, left + 33, row + 11), 200, 340, fill=darker, width=2)
    elif ground == "rock":
        for _ in range(9):
            x, y, w = rng.uniform(0, side), rng.uniform(horizon + 4, side), rng.uniform(9, 20)
            pen.polygon(
                [(x - w, y + 5), (x - w * 0.4, y - w * 0.6), (x + w * 0.5, y - w * 0.5), (x + w, y + 5)], darker
            )
            pen.polygon([(x - w * 0.4, y - w * 0.6), (x + w * 0.5, y - w * 0.5), (x + w * 0.1, y + 2)], lighter)
    elif ground == "grass":
        for _ in range(38):
            x, y = rng.uniform(0, side), rng.uniform(horizon + 3, side)
            pen.line([(x - 3, y), (x - 4, y - 8)], fill=darker, width=2)
            pen.line([(x, y), (x + 3, y - 10)], fill=darker, width=2)
    elif ground == "sand":
        for row in range(int(horizon) + 12, side, 15):
            pen.arc((rng.uniform(-80, 0), row, rng.uniform(side * 0.5, side * 1.3), row + 26), 190, 350, darker, 2)
        for _ in range(26):
            x, y = rng.uniform(0, side), rng.uniform(horizon + 3, side)
            pen.ellipse(_round_box(x, y, 1.4, 1.4), fill=_shift(base, -60))
    else:
        for _ in range(5):
            x, y, w = rng.uniform(0, side), rng.uniform(horizon + 4, side), rng.uniform(16, 34)
            pen.chord((x - w, y - w * 0.3, x + w, y + w * 0.35), 180, 360, fill=(255, 255, 255))
            pen.arc((x - w, y - w * 0.3, x + w, y + w * 0.35), 10, 90, fill=(186, 204, 232), width=2)


def _balloons(image: Image.Image, count: int, side_of_sky: int, rng: random.Random) -> None:
    pen, side = ImageDraw.Draw(image), image.width
    middle = side * (0.5 + side_of_sky * 0.30)
    for number in range(count):
        x = middle + (number - (count - 1) / 2) * side * 0.115 + rng.uniform(-1.5, 1.5)
        x = min(max(x, side * 0.05), side * 0.95)
        y, radius = side * rng.uniform(0.07, 0.13), side * 0.046
        pen.line([(x, y + radius), (x + rng.uniform(-3, 3), y + radius * 3)], fill=DARK, width=2)
        colour = rng.choice(BALLOON_COLOURS)
        pen.ellipse(_round_box(x, y, radius, radius * 1.2), fill=colour, outline=_shift(colour, -60), width=2)


def _sign(image: Image.Image, mark: str, side_of_image: int, horizon: float, rng: random.Random) -> None:
    pen, side = ImageDraw.Draw(image), image.width
    half = side * rng.uniform(0.125, 0.145)
    x = side * (0.5 + side_of_image * 0.325) + rng.uniform(-3, 3)
    y = side * rng.uniform(0.38, 0.46)
    foot = max(y + half, horizon + side * rng.uniform(0.05, 0.12))
    pen.rectangle((x - 4, y, x + 4, foot), fill=(120, 84, 54), outline=(80, 54, 34))
    pen.rounded_rectangle((x - half, y - half, x + half, y + half), 7, (252, 250, 244), (92, 70, 54), width=4)
    MARKS[mark](pen, x, y, half * 0.70)


def _foreground(image: Image.Image, ground: str, rng: random.Random) -> None:
    """Draw something small that hides a part of the subject's feet."""
    pen, side, colour = ImageDraw.Draw(image), image.width, _shift(GROUNDS[ground], -30)
    x, y = rng.uniform(0.1, 0.9) * side, side * rng.uniform(0.93, 0.99)
    for shift in (-1, 0, 1):
        radius = side * rng.uniform(0.035, 0.055)
        pen.ellipse(_round_box(x + shift * radius * 1.3, y, radius, radius), fill=_jitter(colour, 10, rng))


def _darken(colour: Colour, share: float) -> Colour:
    red, green, blue = (int(value * share) for value in colour)
    return red, green, blue


def _shift(colour: Colour, amount: int) -> Colour:
    red, green, blue = (max(0, min(255, value + amount)) for value in colour)
    return red, green, blue


def _round_box(x: float, y: float, rx: float, ry: float) -> Box:
    return x - rx, y - ry, x + rx, y + ry


def _tower(pen: Pen) -> None:
    pen.polygon([(-11, 0), (11, 0), (9, 56), (-9, 56)])
    pen.box(-13, 56, 13, 66)
    for x in (-13, -3.5, 6):
        pen.box(x, 66, x + 7, 71)
    for y in (16, 32, 46):
        pen.box(-2.5, y, 2.5, y + 7, fill=DARK)
    pen.polygon([(-4, 0), (4, 0), (4, 8), (0, 11), (-4, 8)], fill=DARK)


def _castle(pen: Pen) -> None:
    pen.box(-24, 0, 20, 28)
    for x in (-24, -12, 0):
        pen.box(x, 28, x + 7, 34)
    pen.box(12, 0, 28, 44)
    pen.polygon([(9, 44), (31, 44), (20, 62)], fill=pen.shade)
    pen.box(-28, 0, -18, 36)
    pen.polygon([(-30, 36), (-16, 36), (-23, 50)], fill=pen.shade)
    pen.polygon([(-8, 0), (4, 0), (4, 10), (-2, 15), (-8, 10)], fill=DARK)
    pen.box(18, 26, 23, 34, fill=DARK)


def _car(pen: Pen) -> None:
    pen.polygon([(-30, 8), (31, 8), (31, 19), (19, 22), (12, 33), (-14, 33), (-21, 22), (-30, 20)])
    pen.polygon([(-11, 22), (-1, 22), (-1, 30), (-8, 30)], fill=(206, 230, 240))
    pen.polygon([(3, 22), (14, 22), (9, 30), (3, 30)], fill=(206, 230, 240))
    for x in (-17, 18):
        pen.disc(x, 7, 8.5, fill=DARK)
        pen.disc(x, 7, 3.5, fill=(200, 200, 204))
    pen.disc(29, 16, 2.2, fill=(255, 240, 170))


def _train(pen: Pen) -> None:
    pen.box(-28, 10, -8, 44)
    pen.box(-31, 44, -5, 49, fill=pen.shade)
    pen.box(-23, 24, -13, 38, fill=(206, 230, 240))
    pen.box(-8, 10, 26, 31)
    pen.polygon([(12, 31), (20, 31), (23, 46), (9, 46)], fill=pen.shade)
    pen.disc(2, 33, 4.5, fill=pen.shade)
    pen.polygon([(26, 4), (35, 4), (26, 16)], fill=pen.shade)
    for x, radius in ((-18, 9), (4, 7), (19, 7)):
        pen.disc(x, radius - 1, radius, fill=DARK)
        pen.disc(x, radius - 1, radius * 0.4, fill=(200, 200, 204))


def _owl(pen: Pen) -> None:
    pen.disc(0, 27, 20, 26)
    pen.polygon([(-16, 46), (-15, 62), (-5, 52)])
    pen.polygon([(16, 46), (15, 62), (5, 52)])
    pen.disc(0, 20, 11, 15, fill=pen.shade)
    pen.polygon([(-19, 36), (-25, 12), (-13, 18)], fill=pen.shade)
    pen.polygon([(19, 36), (25, 12), (13, 18)], fill=pen.shade)
    for x in (-8, 8):
        pen.disc(x, 41, 7.5, fill=(252, 248, 226))
        pen.disc(x, 41, 3.4, fill=(24, 22, 22))
        pen.line([(x - 3, 1), (x - 3, -2)], 2.4, fill=(230, 160, 60))
        pen.line([(x + 2, 1), (x + 2, -2)], 2.4, fill=(230, 160, 60))
    pen.polygon([(-3, 37), (3, 37), (0, 30)], fill=(240, 170, 50))


def _turtle(pen: Pen) -> None:
    for x in (-17, 14):
        pen.box(x - 4, 0, x + 4, 12, fill=pen.shade)
    pen.disc(29, 21, 8, 7, fill=pen.shade)
    pen.disc(31, 23, 1.7, fill=(250, 250, 250))
    pen.polygon([(-27, 8), (-35, 4), (-25, 14)], fill=pen.shade)
    points = [(25 * math.cos(a), 9 + 27 * math.sin(a)) for a in (math.pi * step / 14 for step in range(15))]
    pen.polygon([(26, 8), *points, (-26, 8)])
    for x, y in ((-12, 17), (0, 25), (12, 17), (0, 13)):
        pen.polygon(
            [(x + 5 * math.cos(a), y + 5 * math.sin(a)) for a in (i * math.pi / 3 for i in range(6))], pen.shade
        )


def _tree(pen: Pen) -> None:
    pen.polygon([(-5, 0), (5, 0), (3.5, 26), (-3.5, 26)], fill=(122, 84, 52))
    for x, y, radius in ((-14, 34, 14), (14, 34, 14), (0, 30, 13), (-8, 50, 13), (8, 50, 13), (0, 60, 11)):
        pen.disc(x, y, radius)
    for x, y in ((-13, 38), (4, 54), (12, 32), (-2, 40)):
        pen.disc(x, y, 3, fill=pen.shade)


def _flower(pen: Pen) -> None:
    pen.line([(0, 0), (1, 20), (0, 40)], 4, fill=(58, 128, 62))
    pen.polygon([(0, 10), (17, 23), (19, 12), (5, 6)], fill=(70, 146, 72))
    pen.polygon([(0, 14), (-16, 27), (-19, 16), (-5, 9)], fill=(70, 146, 72))
    for step in range(6):
        angle = step * math.pi / 3
        pen.disc(14 * math.cos(angle), 49 + 14 * math.sin(angle), 9)
    pen.disc(0, 49, 8, fill=(250, 206, 70) if pen.fill[2] > 90 or pen.fill[1] < 150 else (130, 80, 40))


def _drum(pen: Pen) -> None:
    for x in (-17, 17):
        pen.line([(x, 4), (x * 1.25, -2)], 4, fill=DARK)
    pen.box(-25, 6, 25, 34)
    pen.disc(0, 6, 25, 6)
    pen.box(-24, 6, 24, 12)
    for x in range(-24, 24, 12):
        pen.line([(x, 32), (x + 6, 8), (x + 12, 32)], 1.8, fill=(246, 230, 180))
    pen.disc(0, 34, 25, 8, fill=(248, 240, 222))
    pen.line([(-28, 58), (-4, 37)], 3, fill=(172, 120, 70))
    pen.line([(28, 58), (6, 37)], 3, fill=(172, 120, 70))
    pen.disc(-4, 37, 2.8, fill=(220, 180, 120))
    pen.disc(6, 37, 2.8, fill=(220, 180, 120))


def _guitar(pen: Pen) -> None:
    pen.box(-3.4, 36, 3.4, 66, fill=(122, 84, 52))
    pen.box(-6, 64, 6, 74, fill=(92, 62, 40))
    pen.disc(0, 15, 19, 16)
    pen.disc(0, 33, 13, 12)
    pen.disc(0, 24, 11, 9)
    pen.disc(0, 26, 5.6, fill=DARK)
    pen.box(-8, 8, 8, 12, fill=(92, 62, 40))
    for x in (-1.6, 1.6):
        pen.line([(x, 11), (x, 66)], 0.9, fill=(238, 232, 214))


KINDS: dict[str, Callable[[Pen], None]] = {
    "tower": _tower,
    "castle": _castle,
    "car": _car,
    "train": _train,
    "owl": _owl,
    "turtle": _turtle,
    "tree": _tree,
    "flower": _flower,
    "drum": _drum,
    "guitar": _guitar,
}


def _star(pen: ImageDraw.ImageDraw, x: float, y: float, r: float) -> None:
    radii = [r * (1.1 if point % 2 == 0 else 0.45) for point in range(10)]
    pen.polygon(
        [(x + q * math.sin(i * math.pi / 5), y - q * math.cos(i * math.pi / 5)) for i, q in enumerate(radii)], DARK
    )


def _cross(pen: ImageDraw.ImageDraw, x: float, y: float, r: float) -> None:
    pen.rectangle((x - r, y - r * 0.28, x + r, y + r * 0.28), DARK)
    pen.rectangle((x - r * 0.28, y - r, x + r * 0.28, y + r), DARK)


def _circle(pen: ImageDraw.ImageDraw, x: float, y: float, r: float) -> None:
    pen.ellipse(_round_box(x, y, r, r), DARK)


def _ring(pen: ImageDraw.ImageDraw, x: float, y: float, r: float) -> None:
    pen.ellipse(_round_box(x, y, r, r), outline=DARK, width=max(3, int(r * 0.34)))


def _square(pen: ImageDraw.ImageDraw, x: float, y: float, r: float) -> None:
    pen.rectangle((x - r * 0.88, y - r * 0.88, x + r * 0.88, y + r * 0.88), DARK)


def _triangle(pen: ImageDraw.ImageDraw, x: float, y: float, r: float) -> None:
    pen.polygon([(x - r, y + r * 0.9), (x + r, y + r * 0.9), (x, y - r)], DARK)


MARKS: dict[str, Callable[[ImageDraw.ImageDraw, float, float, float], None]] = {
    "star": _star,
    "cross": _cross,
    "circle": _circle,
    "ring": _ring,
    "square": _square,
    "triangle": _triangle,
}

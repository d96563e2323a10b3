"""Values that an invented world draws: names, people, years, amounts, titles of works."""

from __future__ import annotations

import random
from collections.abc import Callable

_NAME_STARTS = (
    "Bal Cor Dra El Fen Gar Hol Is Jor Kel Lor Mar Nor Or Pel Quin Ras Sel Tor Ul Ven Wes Yar Zan Ald Bren Cas Dun "
    "Fal Gri"
).split()
_NAME_ENDS = (
    "mar den vik tha lin rok sha bur wen dal fer gan hel mir nor pol ris sten tur vel wick yor zel bek cra dor eth "
    "fin gol hem"
).split()
_FIRST_NAMES = (
    "Ada Bruno Clara David Edith Felix Greta Hugo Irene Jonas Karin Leo Maria Nils Olga Peter Rosa Simon Tilda Viktor "
    "Anna Boris Cora Emil Frida"
).split()
_LAST_NAMES = (
    "Abel Berg Castell Dorn Ekman Falk Graf Holm Iversen Jung Keller Lind Moser Nash Otter Pohl Quist Roth Stahl "
    "Thorn Ulrich Vogt Weber Young Zeller"
).split()
_BODIES = "Trust Society Council Guild Museum Bank Order Company".split()
MONTHS = "January February March April May June July August September October November December".split()
MATERIALS = "granite oak marble brick steel sandstone copper limestone slate bronze timber glass".split()
FOODS = "clover barley berries beetles moss acorns snails seeds worms grapes lichen crabs".split()
SCENTS = "honey mint lemon vanilla cedar pepper ginger lavender cocoa almond thyme pine".split()
_TITLE_STARTS = "Silent Golden Distant Broken Winter Scarlet Hidden Little Endless Northern Paper Midnight".split()
_TITLE_ENDS = "Harbour Road Lantern River Garden Feast Mirror Voyage Letter Morning Orchard Bell".split()


def town(rng: random.Random) -> str:
    """Invent a town."""
    return rng.choice(_NAME_STARTS) + rng.choice(_NAME_ENDS)


def name(rng: random.Random) -> str:
    """Invent a proper name of two or three syllables."""
    return town(rng) + (rng.choice(_NAME_ENDS) if rng.random() < 0.3 else "")


def year(rng: random.Random) -> str:
    """Draw a year from 1500 to 1999."""
    return str(rng.randint(1500, 1999))


def person(rng: random.Random) -> str:
    """Invent a person."""
    return f"{rng.choice(_FIRST_NAMES)} {rng.choice(_LAST_NAMES)}"


def body(rng: random.Random) -> str:
    """Invent an institution, e.g. the `Falk Society`."""
    return f"{rng.choice(_LAST_NAMES)} {rng.choice(_BODIES)}"


def work(rng: random.Random) -> str:
    """Invent the title of a work."""
    return f"{rng.choice(_TITLE_STARTS)} {rng.choice(_TITLE_ENDS)}"


def number_with(unit: str) -> Callable[[random.Random], str]:
    """Return a function that draws a number of two digits, with a unit."""
    return lambda rng: f"{rng.randint(10, 99)} {unit}"


def one_of(words: list[str]) -> Callable[[random.Random], str]:
    """Return a function that draws one of some words."""
    return lambda rng: rng.choice(words)


def two_works(rng: random.Random) -> tuple[str, str]:
    """Invent the titles of two different works."""
    first = work(rng)
    second = work(rng)
    while second == first:
        second = work(rng)
    return first, second


def are_close(one: str, other: str) -> bool:
    """Return True if two amounts are so close that a tolerance may take one for the other."""
    a, b = (int(text.split()[0]) for text in (one, other))
    return abs(a - b) <= 0.15 * max(a, b)

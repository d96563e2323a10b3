"""Visual questions: name, kind, colour, number and style of the depicted thing."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from PIL import Image, ImageChops

from reflectune.examples.pocket.gallery.colours import Edge, edge_colour, has_colour, main_colour
from reflectune.examples.pocket.gallery.entities import GalleryEntity
from reflectune.examples.pocket.gallery.sources.categories import CATEGORIES
from reflectune.examples.pocket.gallery.sources.images import SourceImage

ASKED: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "name": (
        ("What is shown in the picture?", "What is this?", "What does the picture show?", "What can be seen here?"),
        ("Which thing is in this picture?", "What do you see in the picture?"),
    ),
    "kind": (
        ("What kind of thing is this?", "What sort of thing does the picture show?", "What kind of thing is shown?"),
        ("Of what kind is the thing in the picture?", "What type of thing can be seen?"),
    ),
    "colour": (
        ("What is the main colour of this {c}?", "Which colour does this {c} mostly have?", "What colour is this {c}?"),
        ("In what colour is the {c} in the picture?", "Which colour is the {c} that is shown?"),
    ),
    "style": (
        ("Is this a drawing or a photograph?", "Is the picture a photograph or a drawing?"),
        ("Was this picture drawn, or is it a photograph?", "Photograph or drawing: what is this picture?"),
    ),
    "count": (
        ("How many {c}s are in the picture?", "How many {c}s can be seen?", "What is the number of {c}s shown?"),
        ("Count the {c}s in the picture.", "What number of {c}s does the picture show?"),
    ),
    "top": (
        ("What colour is the top of this flag?", "Which colour does the flag have at the top?"),
        ("Which colour is at the upper edge of the flag?", "What colour runs along the top of the flag?"),
    ),
    "bottom": (
        ("What colour is the bottom of this flag?", "Which colour does the flag have at the bottom?"),
        ("Which colour is at the lower edge of the flag?", "What colour runs along the bottom of the flag?"),
    ),
    "left": (
        ("What colour is the left side of this flag?", "Which colour does the flag have on the left?"),
        ("Which colour is at the left edge of the flag?", "What colour runs along the left side of the flag?"),
    ),
    "has": (
        ("Is there any {v} in this flag?", "Does this flag have {v} in it?"),
        ("Can {v} be seen in the flag?", "Is {v} one of the colours of this flag?"),
    ),
}
"""Phrasings of a gallery's questions, by attribute: those of training, and those that are held out."""
FURTHER: dict[str, tuple[str, ...]] = {
    "name": ("What is it that the picture shows?", "Name the thing in the picture.", "What are we looking at?"),
    "kind": (
        "What kind of thing is in the picture?",
        "What type of thing is this?",
        "To which kind of things does this belong?",
        "Name the kind of thing that is shown.",
        "What sort of thing can you see here?",
        "Which type of thing is in this picture?",
    ),
    "colour": (
        "What colour does the {c} have?",
        "Name the main colour of the {c}.",
        "Which colour is this {c}?",
        "What is the colour of the {c} in this picture?",
        "In which colour is this {c} shown?",
        "The {c} in the picture: what colour is it?",
    ),
    "style": (
        "Is it a photograph, or is it drawn?",
        "Drawing or photograph?",
        "Has this picture been drawn or photographed?",
        "What is this: a drawing or a photograph?",
        "Was this photographed or drawn?",
        "Say whether this is a photograph or a drawing.",
    ),
    "count": (
        "How many {c}s does the picture show?",
        "What number of {c}s can you see?",
        "How many {c}s are shown here?",
        "Count the {c}s.",
        "Say how many {c}s there are.",
        "The {c}s in the picture: how many are they?",
    ),
    "top": ("Which colour is the upper part of this flag?", "Name the colour at the top of the flag."),
    "bottom": ("Which colour is the lower part of this flag?", "Name the colour at the bottom of the flag."),
    "left": ("Which colour is the left part of this flag?", "Name the colour on the left of the flag."),
    "has": ("Is {v} a colour of this flag?", "Can you see {v} in this flag?", "Is there {v} in the flag?"),
}
"""Phrasings that a gallery's questions don't have, for the training before."""
_FLAT = ("plain_flags",)
"""Hands whose flags are rectangles without shading, so that pixels have the colours."""
_COUNTED = frozenset("animal bird insect vehicle instrument tool device fruit vegetable".split())
_HIGHEST = 5
_NAMES = {
    "grey": ("grey", "gray"),
    "drawing": ("drawing", "a drawing", "drawn"),
    "photograph": ("photograph", "a photograph", "photo"),
}


@dataclass(frozen=True)
class Visual:
    """A visual question about an image.

    Attributes:
        attribute: The attribute.
        source: The image, or the one that it is composed of.
        image: Path of the image in the data set.
        answers: Accepted answers.
        noun: Name of the thing in the question.
        value: A further value in the question.
    """

    attribute: str
    source: SourceImage
    image: str
    answers: tuple[str, ...]
    noun: str
    value: str = ""

    def ask(self, rng: random.Random, held_out: bool) -> str:
        """Draw the question, in words of training or in held-out ones."""
        return self._in_words(rng.choice(ASKED[self.attribute][held_out]))

    def ask_variously(self, rng: random.Random, count: int) -> list[str]:
        """Draw several questions for the same attribute, none in held-out words."""
        known = (*ASKED[self.attribute][False], *FURTHER[self.attribute])
        return [self._in_words(words) for words in rng.sample(known, count)]

    def _in_words(self, words: str) -> str:
        return words.format(c=self.noun, v=self.value)


def visuals(
    kind: str, names: tuple[str, ...], source: SourceImage, image: Image.Image, path: str, rng: random.Random
) -> Iterator[Visual]:
    """Return the visual questions of an image, without counts.

    Args:
        kind: Kind of thing, a key of `CATEGORIES`.
        names: Names of the image's subject.
        source: The image.
        image: Its pixels, as in the data set.
        path: Its path in the data set.
        rng: Generator of the colours that a flag's questions name.
    """
    category = CATEGORIES[kind]
    if kind == "flag":
        yield Visual("name", source, path, ("flag", "a flag"), "flag")
        if source.hand in _FLAT:
            yield from _of_flag(source, image, path, rng)
        return
    yield Visual("name", source, path, names, category.noun)
    if category.kind:
        yield Visual("kind", source, path, category.kind, category.noun)
    if source.style in ("drawing", "photograph"):
        yield Visual("style", source, path, _NAMES[source.style], category.noun)
    if colour := main_colour(image):
        yield Visual("colour", source, path, _NAMES.get(colour, (colour,)), category.noun)


def names_of(entity: GalleryEntity, source: SourceImage) -> tuple[str, ...]:
    """Return the names of an image's subject: the source's own, then the others."""
    image_name = source.name.lower().split(",")[0].removesuffix(" face")
    rest = [name.lower() for name in entity.names]
    return tuple(dict.fromkeys([image_name, *rest]))


def _of_flag(source: SourceImage, image: Image.Image, path: str, rng: random.Random) -> Iterator[Visual]:
    image = _unframed(image)
    edges: tuple[Edge, ...] = ("top", "bottom", "left")
    for edge in edges:
        if colour := edge_colour(image, edge):
            yield Visual(edge, source, path, (colour,), "flag")
    colours = ["red", "blue", "green", "yellow", "black"]
    known = {colour: has_colour(image, colour) for colour in colours}
    for wanted, answer in ((True, "yes"), (False, "no")):
        fitting = [colour for colour in colours if known[colour] is wanted]
        if fitting:
            yield Visual("has", source, path, (answer,), "flag", rng.choice(fitting))


def _unframed(image: Image.Image) -> Image.Image:
    """Crop a flag's white border and grey edge."""
    box = ImageChops.difference(image, Image.new("RGB", image.size, "white")).point(lambda level: level > 40 and 255)
    left, top, right, bottom = box.getbbox() or (0, 0, *image.size)
    return image.crop((left + 4, top + 4, right - 4, bottom - 4))


def count_question(kind: str, images: Sequence[SourceImage], rng: random.Random) -> tuple[Visual, int] | None:
    """Return a question for the number of copies in a composed image, and the number; None if it can't be counted.

    An image can be counted if it is drawn, and its name is not a plural.

    Args:
        kind: Kind of thing, a key of `CATEGORIES`.
        images: Images of the thing.
        rng: Generator of the image and the number.
    """
    fitting = [
        source for source in images if source.style in ("drawing", "rendering") and not source.name.endswith("s")
    ]
    if kind not in _COUNTED or not fitting:
        return None
    source, count = rng.choice(fitting), rng.randint(1, _HIGHEST)
    words = ("one", "two", "three", "four", "five")
    path = f"images/counted/{source.id.replace('/', '_')}_{count}.jpg"
    return Visual("count", source, path, (str(count), words[count - 1]), CATEGORIES[kind].noun), count


def repeated(image: Image.Image, count: int, rng: random.Random) -> Image.Image:
    """Compose an image of several copies of another, in drawn cells of a grid of three by two."""
    side = 112
    small = image.resize((side - 8, side - 8), Image.Resampling.LANCZOS)
    whole = Image.new("RGB", (3 * side, 3 * side), "white")
    for cell in rng.sample(range(6), count):
        whole.paste(small, (cell % 3 * side + 4, cell // 3 * side + side // 2 + 4))
    return whole

"""Captions of the sources' images, as a sentence and as a word, to train a projector on."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from reflectune.examples.pocket.gallery.entities import GalleryEntity
from reflectune.examples.pocket.gallery.linking import Links, Reviewed, plain_name
from reflectune.examples.pocket.gallery.sources.images import SourceImage
from reflectune.examples.pocket.gallery.sources.reference_works import Country

SENTENCE_PROMPTS: Final = (
    "What is in the picture?",
    "Describe the picture briefly.",
    "What does this picture show?",
    "Give a short caption of the picture.",
    "What can you see in the picture?",
)
WORD_PROMPTS: Final = ("What is in the picture?", "What is this?", "What is shown in the picture?", "Name this.")
FLAG_PROMPTS: Final = ("Which country's flag is this?", "Whose flag does the picture show?")

_PROPER = frozenset({"landmark", "planet"})
_BARE = frozenset({"sport", "activity"})
"""Kinds of things whose names have no article."""
_MASS = frozenset(
    "bacon bamboo bread broccoli butter celery cheese clothing confetti corn curry fire fog garlic ginger glass honey "
    "ice knitting lightning luggage lumber meat milk money mud okra parsley popcorn rice rock salt sand sandalwood "
    "snow soap spaghetti spinach sugar sushi tea tofu toast tempura water wheat wind wine wood wool yarn".split()
)
_SINGULAR_ENDS: Final = ("ss", "us", "is", "as")
_LIKE_YOU = re.compile(r"(?:uni|eu|uku|use|one\b|ufo)", re.IGNORECASE)
_NO_THING = frozenset(
    "arm back black blue brown color gray green mauve pink red white yellow son sister brother dad mother "
    "friend child family eight eleven five four nine one seven six sixteen ten three twelve two zero flies skin "
    "animal".split()
) | {"orange color"}
"""Words of GCompris' word images that don't name a thing."""
_VARIANT: Final = re.compile(r"(?:man|woman|men|women) |.*(?:o’clock|-thirty)$")
"""Emoji that differ from another in a person's sex, and clocks that differ in the hour."""
_PERSON: Final = re.compile(r"(?:person|man|woman)\b")
_SHOWING_NOTHING = frozenset({"tuxpaint/naturalforces/lightningbolt"})
"""Images that are white on nothing."""
_LONGEST: Final = 12
"""Maximum words of a source's own sentence; a longer one tells a story."""


@dataclass(frozen=True)
class Caption:
    """The caption of an image.

    Attributes:
        image: The image.
        thing: Identity of the depicted thing: the title of the article, or the image's name.
        entity: Entity of the gallery; None if no article is linked.
        names: Names of the thing, the image's own first, in small letters except a country's.
        sentence: The caption as a sentence, e.g. `A lion.`
    """

    image: SourceImage
    thing: str
    entity: GalleryEntity | None
    names: tuple[str, ...]
    sentence: str


def read_captions(
    images: Sequence[SourceImage],
    links: Links,
    entities: Sequence[GalleryEntity],
    countries: Sequence[Country],
    reviewed: Reviewed,
) -> Iterator[Caption]:
    """Return the caption of each image that has one; linked images come first.

    Refused images and flags that the Factbook doesn't name are left out. An image without a link that has the name
    of an entity is of that entity.

    Args:
        images: Images of all sources.
        links: Links of some of them to titles.
        entities: Depicted articles.
        countries: Countries, for the name of a flag's letters.
        reviewed: Reviewed list, with the images that show nothing clearly.
    """
    titles = {link.image.id: link.title for link in links.made}
    by_title = {entity.article.title: entity for entity in entities}
    by_name = {name.lower(): entity for entity in entities if entity.category != "flag" for name in entity.names}
    flags = {country.letters: country.name for country in countries} | dict(reviewed.countries)
    for image in sorted(images, key=lambda image: image.id not in titles):
        name = _name_of(image)
        if image.id in _SHOWING_NOTHING or (image.id not in titles and _is_refused(image, name, reviewed)):
            continue
        if image.category == "flag":
            yield from _of_flag(image, by_title.get(titles.get(image.id, "")), flags)
            continue
        entity = by_title.get(titles[image.id]) if image.id in titles else by_name.get(name)
        names = (name, *(other.lower() for other in entity.names if other.lower() != name)) if entity else (name,)
        thing = entity.article.title if entity else name
        yield Caption(image, thing, entity, names, _sentence(image, name, entity))


def _name_of(image: SourceImage) -> str:
    """Return the image's name in small letters; `sun with face` keeps its face, `lion face` doesn't."""
    name = plain_name(image.name).split(":")[0]
    return f"{name} face" if name.endswith(" with") else name


def _is_refused(image: SourceImage, name: str, reviewed: Reviewed) -> bool:
    """Return True if an image without a link shows no thing clearly, or a variant of a different image."""
    if image.id in reviewed.denied or name in reviewed.denied or _VARIANT.match(name):
        return True
    return image.category == "word" and name in _NO_THING


def _of_flag(image: SourceImage, entity: GalleryEntity | None, countries: Mapping[str, str]) -> Iterator[Caption]:
    name = entity.names[0] if entity else countries.get(image.name, "")
    if name := name.split(" (")[0]:
        shown = f"the {name}" if re.search(r"s$|Islands|Republic|Kingdom|Emirates|United", name) else name
        yield Caption(image, entity.article.title if entity else name, entity, (name,), f"The flag of {shown}.")


def _sentence(image: SourceImage, name: str, entity: GalleryEntity | None) -> str:
    """Return the source's own sentence if it is short, else the name with its article."""
    if image.source == "tuxpaint":
        lines = image.file.with_suffix(".txt").read_text(encoding="utf-8", errors="replace").splitlines()
        sentence = re.split(r"(?<=[.!?]) ", lines[0].strip())[0]
        if len(sentence.split()) <= _LONGEST:
            return sentence if sentence.endswith((".", "!", "?")) else f"{sentence}."
    if image.category in _PROPER:
        proper = entity.article.title.split(" (")[0] if entity else image.name
        return f"{proper[:1].upper()}{proper[1:]}."
    return f"{noun_phrase(name, image.category)}."


def noun_phrase(name: str, category: str) -> str:
    """Return a name with its article.

    Example:
        >>> noun_phrase("elephant", "animal"), noun_phrase("scissors", "tool")
        ('An elephant', 'Scissors')
    """
    last = name.split()[-1]
    is_plural = last.endswith("s") and not last.endswith(_SINGULAR_ENDS)
    is_bare = category in _BARE or is_plural or last in _MASS or last.endswith("ing")
    if is_bare and not _PERSON.match(name):
        return f"{name[:1].upper()}{name[1:]}"
    an = name[:1].lower() in "aeiou" and not _LIKE_YOU.match(name)
    return f"{'An' if an else 'A'} {name}"

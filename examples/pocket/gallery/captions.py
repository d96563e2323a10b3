"""Captions of the sources' pictures, as a sentence and as a word, to train a projector on."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from reflectune.examples.pocket.gallery.entities import GalleryEntity
from reflectune.examples.pocket.gallery.linking import Links, Reviewed, plain_name
from reflectune.examples.pocket.gallery.sources.pictures import SourcePicture
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
"""Words of GCompris' word pictures that don't name a thing."""
_VARIANT: Final = re.compile(r"(?:man|woman|men|women) |.*(?:o’clock|-thirty)$")
"""Emoji that differ from another in a person's sex, and clocks that differ in the hour."""
_PERSON: Final = re.compile(r"(?:person|man|woman)\b")
_SHOWING_NOTHING = frozenset({"tuxpaint/naturalforces/lightningbolt"})
"""Pictures that are white on nothing."""
_LONGEST: Final = 12
"""Most words of a source's own sentence; a longer one tells a story."""


@dataclass(frozen=True)
class Caption:
    """The caption of a picture.

    Attributes:
        picture: The picture.
        thing: Identity of the pictured thing: the title of the article, or the picture's name.
        entity: Entity of the gallery; None if no article is linked.
        names: Names of the thing, the picture's own first, in small letters except a country's.
        sentence: The caption as a sentence, e.g. `A lion.`
    """

    picture: SourcePicture
    thing: str
    entity: GalleryEntity | None
    names: tuple[str, ...]
    sentence: str


def read_captions(
    pictures: Sequence[SourcePicture],
    links: Links,
    entities: Sequence[GalleryEntity],
    countries: Sequence[Country],
    reviewed: Reviewed,
) -> Iterator[Caption]:
    """Return the caption of each picture that has one; linked pictures come first.

    Refused pictures and flags that the Factbook doesn't name are left out. A picture without a link that has the name
    of an entity is of that entity.

    Args:
        pictures: Pictures of all sources.
        links: Links of some of them to titles.
        entities: Pictured articles.
        countries: Countries, for the name of a flag's letters.
        reviewed: Reviewed list, with the pictures that show nothing clearly.
    """
    titles = {link.picture.id: link.title for link in links.made}
    by_title = {entity.article.title: entity for entity in entities}
    by_name = {name.lower(): entity for entity in entities if entity.category != "flag" for name in entity.names}
    flags = {country.letters: country.name for country in countries} | dict(reviewed.countries)
    for picture in sorted(pictures, key=lambda picture: picture.id not in titles):
        name = _name_of(picture)
        if picture.id in _SHOWING_NOTHING or (picture.id not in titles and _is_refused(picture, name, reviewed)):
            continue
        if picture.category == "flag":
            yield from _of_flag(picture, by_title.get(titles.get(picture.id, "")), flags)
            continue
        entity = by_title.get(titles[picture.id]) if picture.id in titles else by_name.get(name)
        names = (name, *(other.lower() for other in entity.names if other.lower() != name)) if entity else (name,)
        thing = entity.article.title if entity else name
        yield Caption(picture, thing, entity, names, _sentence(picture, name, entity))


def _name_of(picture: SourcePicture) -> str:
    """Return the picture's name in small letters; `sun with face` keeps its face, `lion face` doesn't."""
    name = plain_name(picture.name).split(":")[0]
    return f"{name} face" if name.endswith(" with") else name


def _is_refused(picture: SourcePicture, name: str, reviewed: Reviewed) -> bool:
    """Return True if a picture without a link shows no thing clearly, or a variant of a different picture."""
    if picture.id in reviewed.denied or name in reviewed.denied or _VARIANT.match(name):
        return True
    return picture.category == "word" and name in _NO_THING


def _of_flag(picture: SourcePicture, entity: GalleryEntity | None, countries: Mapping[str, str]) -> Iterator[Caption]:
    name = entity.names[0] if entity else countries.get(picture.name, "")
    if name := name.split(" (")[0]:
        shown = f"the {name}" if re.search(r"s$|Islands|Republic|Kingdom|Emirates|United", name) else name
        yield Caption(picture, entity.article.title if entity else name, entity, (name,), f"The flag of {shown}.")


def _sentence(picture: SourcePicture, name: str, entity: GalleryEntity | None) -> str:
    """Return the source's own sentence if it is short, else the name with its article."""
    if picture.source == "tuxpaint":
        lines = picture.file.with_suffix(".txt").read_text(encoding="utf-8", errors="replace").splitlines()
        sentence = re.split(r"(?<=[.!?]) ", lines[0].strip())[0]
        if len(sentence.split()) <= _LONGEST:
            return sentence if sentence.endswith((".", "!", "?")) else f"{sentence}."
    if picture.category in _PROPER:
        proper = entity.article.title.split(" (")[0] if entity else picture.name
        return f"{proper[:1].upper()}{proper[1:]}."
    return f"{noun_phrase(name, picture.category)}."


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

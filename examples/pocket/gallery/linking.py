"""Link images to the articles of their subjects: strict names, senses by WordNet, and a reviewed list."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final

from reflectune.core.durable import read_json
from reflectune.core.errors import UserError
from reflectune.examples.pocket.gallery.sources.categories import CATEGORIES, PREFERRED
from reflectune.examples.pocket.gallery.sources.images import SourceImage
from reflectune.examples.pocket.gallery.sources.reference_works import Article, Country
from reflectune.examples.pocket.gallery.sources.wordnet import ANIMAL, ARTIFACT, FOOD, PLANT, Sense, WordNet, singulars

_GROUP_WORDS = frozenset(
    "species genus genera family families group groups order orders type types form kind class clade variety varieties "
    "tribe subfamily superfamily suborder superorder subspecies informal common several part parts piece category "
    "name collection set member members number phylum grouping classification breed taxonomic".split()
)
"""Words before "of" that don't describe a thing; the words after it do."""
_HEAD_ENDS: Final = re.compile(
    r"[,;(–]| (?:in|for|to|with|that|which|who|from|by|on|at|used|made|native|where|as|resulting|consisting|played|worn"
    r"|covering|having|containing|built|based|growing|known|including|of) "
)

_TOPS = {"animal": ANIMAL, "plant": PLANT, "food": FOOD, "artifact": ARTIFACT}
"""Names of whole kinds, which WordNet has in a separate file."""


@dataclass(frozen=True)
class Reviewed:
    """A person's decisions: `reviewed.json`.

    Attributes:
        aliases: Titles for names of images that differ from the title.
        countries: Titles of countries whose article has a different name, by two letters.
        denied: Names, or ids of images, that are not linked, with the reason.
        allowed: Titles whose sense is right although WordNet has no answer.
        look_alikes: Groups of titles that are easily confused.
        categories: Kinds of things of articles whose images' sources have a wrong one.
        denied_facts: `TITLE RELATION` of facts that a pattern reads wrongly.
    """

    aliases: Mapping[str, str]
    countries: Mapping[str, str]
    denied: Mapping[str, str]
    allowed: frozenset[str]
    look_alikes: Sequence[Sequence[str]] = ()
    categories: Mapping[str, str] = field(default_factory=dict)
    denied_facts: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Link:
    """An image and the article of its subject; `rule` is the rule that linked them."""

    image: SourceImage
    title: str
    rule: str


@dataclass
class Links:
    """All links, and the images without one, each with the reason."""

    made: list[Link] = field(default_factory=list)
    refused: list[tuple[SourceImage, str, str]] = field(default_factory=list)


@cache
def read_reviewed(path: Path | None = None) -> Reviewed:
    """Read a reviewed list, by default this package's.

    Raises:
        UserError: A part is missing.
    """
    path = path or Path(__file__).with_name("reviewed.json")
    known: dict[str, Any] = read_json(path, "the reviewed list of links")
    try:
        return Reviewed(
            known["aliases"],
            known["countries"],
            known["denied"],
            frozenset(known["allowed"]),
            known["look_alikes"],
            known["categories"],
            frozenset(known["denied_facts"]),
        )
    except KeyError as error:
        raise UserError(f"{path} lacks {error}") from error


def link_images(
    images: Iterable[SourceImage],
    articles: Mapping[str, Article],
    wordnet: WordNet,
    countries: Iterable[Country],
    reviewed: Reviewed,
) -> Links:
    """Link each image that names an article's subject.

    Args:
        images: Images of all sources.
        articles: Articles, by title.
        wordnet: Senses of names.
        countries: Countries, for the name of a flag's letters.
        reviewed: Reviewed list, which precedes all rules.
    """
    by_letters = {country.letters: country.name for country in countries} | dict(reviewed.countries)
    by_name: dict[str, str] = {}
    for title in articles:
        by_name.setdefault(title.lower(), title)
    links = Links()
    for image in images:
        name = plain_name(image.name)
        why = reviewed.denied.get(image.id) or reviewed.denied.get(name)
        if image.category == "flag":
            title, rule = by_letters.get(image.name, ""), "country"
        elif name in reviewed.aliases:
            title, rule = reviewed.aliases[name], "reviewed"
        else:
            title, rule = next((by_name[form] for form in singulars(name) if form in by_name), ""), "name"
        if title not in articles:
            continue
        if not why and rule == "name" and title not in reviewed.allowed:
            why = sense_problem(articles[title], name, image.category, wordnet)
        if why:
            links.refused.append((image, title, why))
        else:
            links.made.append(Link(image, title, rule))
    return links


def plain_name(name: str) -> str:
    """Return a name in small letters, without its article, the word `face` at its end, or the country of a place."""
    plain = re.sub(r"^(?:the|a|an) +", "", name.lower().split(",")[0])
    return re.sub(r"(?<=[a-z]) face$", "", plain).strip()


def sense_problem(article: Article, name: str, category: str, wordnet: WordNet) -> str:
    """Return the reason that an article has a different subject than an image, by WordNet; "" if it has the same.

    The head noun of the article's description must be of the image's kind: a turkey in an image is an animal, and
    "Country in Southeastern Europe" is not.
    """
    files = CATEGORIES[category].files
    if not any(sense.file in files for sense in wordnet.senses(name)):
        return f"WordNet knows no {CATEGORIES[category].noun} called {name}"
    heads = [head for text in (article.description, first_definition(article.summary)) if (head := head_noun(text))]
    if any(_is_of(sense, files) for head in heads for sense in wordnet.senses(head)):
        return ""
    return f"the article's subject is a {heads[0] if heads else 'thing'}, not a {CATEGORIES[category].noun}"


def _is_of(sense: Sense, files: frozenset[int]) -> bool:
    """Return True if a sense is of one of the kinds, or is a kind's own name (`animal`, which is in no kind)."""
    return sense.file in files or any(_TOPS.get(word) in files for word in sense.words)


def head_noun(description: str) -> str:
    """Return the head noun of a description.

    Example:
        >>> head_noun("Species of large cat")
        'cat'
    """
    text = f"{description.strip().lower().replace('/', ' ')} "
    for _ in range(4):
        start, found, rest = text.partition(" of ")
        words = start.split()
        if not found or not words or words[-1].strip("()") not in _GROUP_WORDS:
            break
        text = rest
    phrase = _HEAD_ENDS.split(text, maxsplit=1)[0].split()
    return phrase[-1].strip(".\"'") if phrase else ""


def first_definition(summary: str) -> str:
    """Return the text after the first `is a` of a summary."""
    match = re.search(r"\b(?:is|are|was|were) (?:an?|the|any|one of)? ?(.+?)[.;]", summary)
    return match[1] if match else ""


def category_of(images: Sequence[SourceImage]) -> str:
    """Return an entity's kind of thing, from its images'."""
    named = [image.category for image in images if image.category != "word"] or ["word"]
    return next((kind for kind in PREFERRED if kind in named), named[0])

"""Collect the sources' images, articles and facts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from reflectune.core.errors import UserError
from reflectune.examples.pocket.gallery.country_facts import country_facts
from reflectune.examples.pocket.gallery.entities import GalleryEntity
from reflectune.examples.pocket.gallery.facts import Fact
from reflectune.examples.pocket.gallery.linking import Reviewed
from reflectune.examples.pocket.gallery.sources.emoji_and_flags import read_emoji, read_flags
from reflectune.examples.pocket.gallery.sources.gcompris import read_activities
from reflectune.examples.pocket.gallery.sources.images import SourceImage
from reflectune.examples.pocket.gallery.sources.packages import NEEDED, SOURCES, fetch_sources
from reflectune.examples.pocket.gallery.sources.reference_works import Article, Country, read_articles, read_countries
from reflectune.examples.pocket.gallery.sources.stamps import read_stamps
from reflectune.examples.pocket.gallery.sources.wordnet import WordNet
from reflectune.examples.pocket.gallery.taxonomy_facts import kind_fact, taxonomy_facts
from reflectune.examples.pocket.gallery.text_facts import reviewed_facts, text_facts


@dataclass(frozen=True)
class Collection:
    """The unpacked sources, read on first use.

    Attributes:
        folders: Folder of each source, by key.
    """

    folders: Mapping[str, Path]

    @property
    def names(self) -> Sequence[str]:
        """Keys of the sources."""
        return tuple(self.folders)

    @property
    def described(self) -> dict[str, str]:
        """Version of each source that is a package, by its hash."""
        return {name: f"{SOURCES[name].package}, sha256 {SOURCES[name].package.sha256}" for name in self.folders}

    @cached_property
    def articles(self) -> dict[str, Article]:
        """Articles, by title."""
        return read_articles(self.folders["wikipedia"])

    @cached_property
    def wordnet(self) -> WordNet:
        """The nouns of WordNet."""
        return WordNet(self.folders["wordnet"])

    @cached_property
    def countries(self) -> list[Country]:
        """The Factbook's pages; empty without it."""
        return list(read_countries(self.folders["factbook"])) if "factbook" in self.folders else []

    @cached_property
    def images(self) -> list[SourceImage]:
        """Images of all sources, in a fixed order.

        Raises:
            UserError: Two have one id.
        """
        folders = dict(self.folders)
        images = [*read_emoji(folders), *read_flags(folders)]
        images += read_stamps(folders["tuxpaint"]) if "tuxpaint" in folders else []
        images += read_activities(folders["gcompris"]) if "gcompris" in folders else []
        seen = set[str]()
        for image in images:
            if image.id in seen:
                raise UserError(f"two images have the id {image.id}; ids must be unique")
            seen.add(image.id)
        return images


def collect_sources(names: Sequence[str], cache: Path) -> Collection:
    """Unpack the named sources and those that every gallery needs.

    Raises:
        UserError: As `fetch_sources`.
    """
    return Collection(fetch_sources(list(dict.fromkeys([*NEEDED, *names])), cache))


def collect_facts(entities: Sequence[GalleryEntity], sources: Collection, reviewed: Reviewed) -> dict[str, list[Fact]]:
    """Return the facts of countries and of all depicted entities, by title; the first fact of each relation counts.

    Args:
        entities: Depicted articles.
        sources: Sources of the facts.
        reviewed: Reviewed list, with the facts to leave out.
    """
    facts: list[Fact] = []
    titles = {country.letters: reviewed.countries.get(country.letters, country.name) for country in sources.countries}
    linked = set[str]()
    for country in sources.countries:
        title = titles[country.letters]
        if title in sources.articles and title not in linked:
            linked.add(title)
            facts += country_facts(country, title)
    for entity in entities:
        if entity.category != "flag":
            facts += reviewed_facts(entity.article)
            facts += text_facts(entity.article, entity.category)
            facts += taxonomy_facts(entity.article, entity.names, entity.category, sources.wordnet)
            facts += kind_fact(entity.article, entity.names[0], entity.category, sources.wordnet)
    first_facts: dict[tuple[str, str], Fact] = {}
    for fact in facts:
        first_facts.setdefault((fact.title, fact.relation), fact)
    by_title: dict[str, list[Fact]] = {}
    for (title, relation), fact in first_facts.items():
        if f"{title} {relation}" not in reviewed.denied_facts:
            by_title.setdefault(title, []).append(fact)
    return by_title

"""Facts by WordNet: family, order and class of animals and plants, and the kind of an artifact."""

from __future__ import annotations

import re
from collections.abc import Iterator

from reflectune.examples.pocket.gallery.facts import Fact
from reflectune.examples.pocket.gallery.sources.reference_works import Article
from reflectune.examples.pocket.gallery.sources.wordnet import ANIMAL, ARTIFACT, PLANT, RANKS, WordNet

HEADING = "Facts"
_OUTDATED = frozenset(
    "Pongidae Falconiformes Marsupialia Artiodactyla Cetacea Pinnipedia Ciconiiformes Charadriiformes Edentata "
    "Chelonia Insectivora Meleagrididae Raphidae Tiliaceae Procyonidae Thalarctos Gramineae Cruciferae Leguminosae "
    "Bradypodidae Saurischia Scorpionida Osteichthyes Crangonidae Chamaeleontidae Cricetus Crustacea Phalangeridae "
    "Draco Agamidae Palmae Compositae Umbelliferae Labiatae Tubuliflorae".split()
)
"""Names that botany and zoology have given up or moved, or that belong to one member of a larger group."""

_ANIMALS = ("animal", "bird", "reptile", "sea animal", "insect")
_PLANTS = ("plant", "flower", "fruit", "vegetable")
_COMMON = {
    "Mammalia": ("mammals", "mammal"),
    "Aves": ("birds", "bird"),
    "Insecta": ("insects", "insect"),
    "Reptilia": ("reptiles", "reptile"),
    "Amphibia": ("amphibians", "amphibian"),
    "Arachnida": ("arachnids", "arachnid"),
    "Cephalopoda": ("cephalopods", "cephalopod"),
}
"""English names of the members of a class; accepted as well."""


def taxonomy_facts(article: Article, names: tuple[str, ...], category: str, wordnet: WordNet) -> Iterator[Fact]:
    """Return the ranks of an animal or plant that WordNet has and the summary doesn't contradict.

    Args:
        article: Article of the facts.
        names: Names of its subject: the title and the images' names.
        category: Kind of thing; animals and plants alone have ranks.
        wordnet: Source of the ranks.
    """
    living = ANIMAL if category in _ANIMALS else PLANT if category in _PLANTS else -1
    for name in names:
        for sense in wordnet.senses(name):
            if sense.file != living:
                continue
            ranks = wordnet.taxonomy(sense)
            if not ranks:
                continue
            for rank in RANKS if sense.file == ANIMAL else ("genus", "family"):
                value = ranks.get(rank, "")
                if value and value not in (*_OUTDATED, article.title) and not _is_contradicted(article, rank, value):
                    common = _COMMON.get(value, ())
                    group = f"{value}, the {common[0]}" if common else value
                    yield Fact(
                        article.title, rank, (value, *common), "string", HEADING, f"It belongs to the {rank} {group}."
                    )
            return


def kind_fact(article: Article, name: str, category: str, wordnet: WordNet) -> Iterator[Fact]:
    """Return the fact of an artifact's wider kind, if WordNet has one sense of its name as an artifact."""
    senses = [sense for sense in wordnet.senses(name) if sense.file == ARTIFACT]
    if category not in _KINDS or len(senses) != 1:
        return
    hypernym = wordnet.hypernym(senses[0])
    if hypernym is None or hypernym.words[0].replace(" ", "-") in _VAGUE:
        return
    kinds = tuple(word.lower() for word in hypernym.words)
    if name.lower() in " ".join(kinds):
        return
    if not any(word in name.lower().split() for kind in kinds for word in kind.split()):
        article_word = "an" if kinds[0][0] in "aeiou" else "a"
        yield Fact(article.title, "kind", kinds, "string", HEADING, f"It is {article_word} {kinds[0]}.")


_KINDS = ("instrument", "building", "landmark", "device", "clothing", "vehicle", "boat")
_VAGUE = frozenset(
    "heavier-than-air-craft device artifact instrumentality structure implement equipment covering instrument "
    "container zone ceramic terminal excavation product projectile stairs cube cord lamp vessel car railway edge-tool "
    "mechanism electronic-equipment electrical-device electronic-device object".split()
)
"""Kinds that are too vague, or belong to a different sense."""


def _is_contradicted(article: Article, rank: str, value: str) -> bool:
    """Return True if the summary names a different family, genus, … than this one."""
    endings = {"family": r"\b[A-Z][a-z]+(?:idae|aceae)\b"}
    pattern = endings.get(rank, rf"\b{rank} ([A-Z][a-z]+)")
    return value not in article.summary and re.search(pattern, article.summary) is not None

"""Facts about what family, order and class an animal or plant is of, and what kind of thing a thing is, by WordNet."""

from __future__ import annotations

import re
from collections.abc import Iterator

from reflectune.examples.pocket.gallery.facts import Fact
from reflectune.examples.pocket.gallery.sources.reference_works import Article
from reflectune.examples.pocket.gallery.sources.wordnet import ANIMAL, ARTIFACT, PLANT, WordNet

HEADING = "Facts"
_OUTDATED = frozenset(
    "Pongidae Falconiformes Marsupialia Artiodactyla Cetacea Pinnipedia Ciconiiformes Charadriiformes Edentata "
    "Chelonia Insectivora Meleagrididae Raphidae Tiliaceae Procyonidae Thalarctos Gramineae Cruciferae Leguminosae "
    "Bradypodidae Saurischia Scorpionida Osteichthyes Crangonidae Chamaeleontidae Cricetus Crustacea Phalangeridae "
    "Draco Agamidae Palmae Compositae Umbelliferae Labiatae Tubuliflorae".split()
)
"""Names that today's botany and zoology have given up or moved, or that are of one member of a larger group."""

_ANIMALS = ("animal", "bird", "reptile", "sea animal", "insect")
_PLANTS = ("plant", "flower", "fruit", "vegetable")
_RANKS = ("genus", "family", "order", "class")
_COMMON = {
    "Mammalia": ("mammals", "mammal"),
    "Aves": ("birds", "bird"),
    "Insecta": ("insects", "insect"),
    "Reptilia": ("reptiles", "reptile"),
    "Amphibia": ("amphibians", "amphibian"),
    "Arachnida": ("arachnids", "arachnid"),
    "Cephalopoda": ("cephalopods", "cephalopod"),
}
"""What the members of a class are called in English; accepted as well."""


def taxonomy_facts(article: Article, names: tuple[str, ...], category: str, wordnet: WordNet) -> Iterator[Fact]:
    """The ranks of an animal or plant that WordNet has and the summary doesn't gainsay.

    Args:
        article: What the facts are added to.
        names: What its subject is called: its title and its pictures' names.
        category: What kind of thing it is; there are ranks for animals and plants alone.
        wordnet: Where the ranks come from.
    """
    living = ANIMAL if category in _ANIMALS else PLANT if category in _PLANTS else -1
    for name in names:
        for sense in wordnet.senses(name):
            if sense.file != living:
                continue
            ranks = wordnet.taxonomy(sense)
            if not ranks:
                continue
            for rank in _RANKS if sense.file == ANIMAL else ("genus", "family"):
                value = ranks.get(rank, ("",))[0]
                if value and value not in (*_OUTDATED, article.title) and not _gainsaid(article, rank, value):
                    common = _COMMON.get(value, ())
                    told = f"{value}, the {common[0]}" if common else value
                    yield Fact(
                        article.title, rank, (value, *common), "string", HEADING, f"It belongs to the {rank} {told}."
                    )
            return


def kind_fact(article: Article, name: str, category: str, wordnet: WordNet) -> Iterator[Fact]:
    """What wider kind of thing an artifact is, if WordNet knows one sense of its name as an artifact."""
    senses = [sense for sense in wordnet.senses(name) if sense.file == ARTIFACT]
    if category not in _KINDS or len(senses) != 1:
        return
    above = next(iter(wordnet.ancestors(senses[0])), None)
    if above is None or above.words[0].replace(" ", "-") in _VAGUE or name.lower() in " ".join(above.words).lower():
        return
    kinds = tuple(word.lower() for word in above.words)
    if not any(word in name.lower().split() for kind in kinds for word in kind.split()):
        article_word = "an" if kinds[0][0] in "aeiou" else "a"
        yield Fact(article.title, "kind", kinds, "string", HEADING, f"It is {article_word} {kinds[0]}.")


_KINDS = ("instrument", "building", "landmark", "device", "clothing", "vehicle", "boat")
_VAGUE = frozenset(
    "heavier-than-air-craft device artifact instrumentality structure implement equipment covering instrument "
    "container zone ceramic terminal excavation product projectile stairs cube cord lamp vessel car railway edge-tool "
    "mechanism electronic-equipment electrical-device electronic-device object".split()
)
"""Kinds that say too little, or are of another sense."""


def _gainsaid(article: Article, rank: str, value: str) -> bool:
    """Whether the summary names another one of this rank."""
    endings = {"family": r"\b[A-Z][a-z]+(?:idae|aceae)\b"}
    pattern = endings.get(rank, rf"\b{rank} ([A-Z][a-z]+)")
    return value not in article.summary and re.search(pattern, article.summary) is not None

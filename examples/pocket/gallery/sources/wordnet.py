"""WordNet's nouns: the senses of names, and the family, order and class of animals and plants."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

FILE = "usr/share/wordnet/data.noun"
ANIMAL, ARTIFACT, FOOD, PLANT = 5, 6, 13, 20
"""Numbers of WordNet's files of nouns (lexnames)."""

RANKS = ("genus", "family", "order", "class")


@dataclass(frozen=True)
class Sense:
    """A set of synonyms.

    Attributes:
        file: Number of its lexicographer file: 5 animals, 6 artifacts, 8 the body, 13 food, 15 places, 20 plants, …
        words: Its synonyms.
        hypernyms: Offsets of its hypernyms.
        groups: Offsets of the group that it is a member of, e.g. a family's order.
    """

    file: int
    words: tuple[str, ...]
    hypernyms: tuple[str, ...]
    groups: tuple[str, ...]


class WordNet:
    """The nouns of one `data.noun`.

    Args:
        folder: The unpacked package.
    """

    def __init__(self, folder: Path) -> None:
        path = folder / FILE
        self._senses: dict[str, Sense] = {}
        self._offsets: dict[str, list[str]] = defaultdict(list)
        for line in path.read_text(encoding="latin-1").splitlines():
            if not line.startswith("  "):
                self._add(line)

    def _add(self, line: str) -> None:
        head, _ = line.split("|", 1)
        fields = head.split()
        count = int(fields[3], 16)
        words = tuple(fields[4 + 2 * i].replace("_", " ") for i in range(count))
        start = 4 + 2 * count
        links = [tuple(fields[start + 1 + 4 * i : start + 3 + 4 * i]) for i in range(int(fields[start]))]
        self._senses[fields[0]] = Sense(
            int(fields[1]),
            words,
            tuple(offset for symbol, offset in links if symbol in ("@", "@i")),
            tuple(offset for symbol, offset in links if symbol == "#m"),
        )
        for word in words:
            self._offsets[word.lower()].append(fields[0])

    def senses(self, name: str) -> list[Sense]:
        """Return the senses of a name, singular or plural; none if WordNet doesn't have it."""
        for form in singulars(name.lower()):
            if form in self._offsets:
                return [self._senses[offset] for offset in self._offsets[form]]
        return []

    def hypernym(self, sense: Sense) -> Sense | None:
        """Return the first hypernym of a sense; None if it has none."""
        return self._senses[sense.hypernyms[0]] if sense.hypernyms else None

    def taxonomy(self, sense: Sense) -> dict[str, str]:
        """Return WordNet's Latin names of genus, family, order and class."""
        ranks: dict[str, str] = {}
        seen = set[str]()
        while sense.groups and sense.groups[0] not in seen:
            seen.add(sense.groups[0])
            sense = self._senses[sense.groups[0]]
            for word in sense.words:
                rank, _, name = word.partition(" ")
                if rank in RANKS and name[:1].isupper() and rank not in ranks:
                    ranks[rank] = name
        return ranks


def singulars(name: str) -> Iterator[str]:
    """Yield a name, and the names whose plural it may be.

    Example:
        >>> list(singulars("cherries"))
        ['cherries', 'cherry', 'cherrie']
    """
    yield name
    for ending, instead in (("ies", "y"), ("ves", "f"), ("ches", "ch"), ("shes", "sh"), ("sses", "ss"), ("oes", "o")):
        if name.endswith(ending) and len(name) > len(ending) + 1:
            yield name.removesuffix(ending) + instead
    if name.endswith("s") and not name.endswith("ss") and len(name) > 3:
        yield name[:-1]

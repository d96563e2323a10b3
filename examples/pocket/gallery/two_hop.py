"""Two-hop questions: the depicted entity's article names a second article's subject, and that one has the answer."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from reflectune.core.types import Entry, Evidence
from reflectune.examples.pocket.gallery.facts import Fact, evidence_of
from reflectune.examples.pocket.gallery.relations import RELATIONS, cue_of, fill
from reflectune.examples.pocket.gallery.sources.reference_works import Article

_BRIDGES: dict[str, tuple[str, str]] = {
    # relation of the first hop: what its value is called, in training and in held-out words
    "capital": ("the capital of {it}", "the capital city that {it} has"),
    "longest_border": (
        "the country with which {it} has its longest land border",
        "the neighbour that shares the longest border with {it}",
    ),
    "partner": ("the biggest buyer of exports from {it}", "the chief export market of {it}"),
    "native_to": ("the place that {it} is native to", "the native land of {it}"),
    "country": ("the country in which {it} is", "the country where {it} stands"),
    "city": ("the city in which {it} is", "the city where {it} stands"),
    "cuisine": ("the country whose cuisine {it} belongs to", "the home country of {it}"),
    "language": ("the main language of {it}", "the language that is spoken most in {it}"),
}
_SECOND = ("capital", "currency", "language", "highest_point", "anthem", "river", "founded", "language_family")
_RIVER = re.compile(
    r"\b(?:on|along|by|at the mouth of) (?:the (?:\w+ )?)?(?:banks? of the )?"
    r"(?:River (?P<a>[A-Z]\w+)|(?P<b>[A-Z]\w+(?: [A-Z]\w+)?) River"
    r"|the (?P<c>Danube|Seine|Tiber|Thames|Nile|Rhine|Vistula))\b"
)
_FOUNDED = re.compile(r"\b(?:founded|established|settled)\b[^.;]{0,40}?\bin (?P<v>\d{3,4})\b")
_FAMILY = re.compile(r"\bis an? (?:[a-z]+ )?(?P<v>[A-Z][\w-]+) language\b")
_SUBJECTS = {
    "flag": ("the country with this flag", "the country whose flag is shown"),
    "other": ("this {c}", "the {c} that is shown"),
}
_ASKED = {
    "river": (("On which river does {it} lie?",), ("What river runs through {it}?",)),
    "founded": (("In which year was {it} founded?",), ("What is the founding year of {it}?",)),
    "language_family": (
        ("To which family of languages does {it} belong?",),
        ("Of which language family is {it} a member?",),
    ),
}


@dataclass(frozen=True)
class TwoHop:
    """Two facts, the second about the value of the first, and the sections that state both."""

    first: Fact
    second: Fact
    evidence: tuple[Evidence, ...]
    noun: str

    def ask(self, category: str, rng: random.Random, held_out: bool) -> str:
        """Return the second fact's question about the value of the first."""
        subject = _SUBJECTS["flag" if category == "flag" else "other"][held_out].format(c=self.noun)
        bridge = _BRIDGES[self.first.relation][held_out].format(it=subject)
        known = RELATIONS.get(self.second.relation)
        texts = (known.train, known.held_out) if known else _ASKED[self.second.relation]
        return fill(rng.choice(texts[held_out]), bridge)


def second_facts(article: Article) -> Iterator[Fact]:
    """Return the facts of a city's or language's summary that a second hop may ask for."""
    if match := _RIVER.search(article.summary):
        name = match["a"] or match["b"] or match["c"]
        yield Fact(article.title, "river", (name, f"{name} River", f"River {name}"))
    if match := _FOUNDED.search(article.summary):
        yield Fact(article.title, "founded", (match["v"],), "time")
    if article.title.endswith(" language") and (match := _FAMILY.search(article.summary)):
        yield Fact(article.title, "language_family", (match["v"],))


class Chains:
    """Finds the two-hop questions of a gallery.

    Args:
        facts: Facts of each article, by title.
        entries: Entries of the knowledge base, by title.
        articles: Articles, by title.
    """

    def __init__(
        self, facts: Mapping[str, Sequence[Fact]], entries: Mapping[str, Entry], articles: Mapping[str, Article]
    ) -> None:
        self._facts, self._entries, self._articles = facts, entries, articles
        self._known: dict[tuple[str, str], tuple[Evidence, ...]] = {}
        self._of_demonym = {
            fact.answers[0]: title for title, known in facts.items() for fact in known if fact.relation == "demonym"
        }

    def of(self, title: str, noun: str) -> list[TwoHop]:
        """Return the two-hop questions that start at an article's subject.

        Args:
            title: Title of the article.
            noun: Name of its subject in a question.
        """
        chains = []
        for first in self._facts.get(title, ()):
            target = self._target(first)
            if target is None or target == title:
                continue
            begin = self._evidence(first)
            for second in self._about(target):
                end = self._evidence(second)
                if begin and end and not self._is_given(title, second):
                    chains.append(TwoHop(first, second, (*begin, *end), noun))
        return chains

    def _evidence(self, fact: Fact) -> tuple[Evidence, ...]:
        key = (fact.title, fact.relation)
        if key not in self._known:
            self._known[key] = evidence_of(fact, self._entries[fact.title], cue_of(fact.relation))
        return self._known[key]

    def _target(self, first: Fact) -> str | None:
        """Return the title of the article about a fact's value."""
        if first.relation not in _BRIDGES or first.answer_type != "string":
            return None
        value = first.answers[0]
        if first.relation == "language":
            named = f"{value} language"
            return named if named in self._articles else None
        if first.relation == "cuisine":
            return self._of_demonym.get(value)
        if value in self._articles and first.relation in ("capital", "city"):
            is_city = "capital" in self._articles[value].summary or first.relation == "city"
            return value if is_city and value not in self._facts else None  # a country of the same name has facts
        return value if value in self._facts else None

    def _about(self, title: str) -> list[Fact]:
        known = [fact for fact in self._facts.get(title, ()) if fact.relation in _SECOND]
        return [*known, *second_facts(self._articles[title])]

    def _is_given(self, title: str, second: Fact) -> bool:
        """Return True if the first article states the same answer, so that one hop answers the question."""
        return any(
            fact.relation == second.relation and set(fact.answers) & set(second.answers)
            for fact in self._facts.get(title, ())
        )

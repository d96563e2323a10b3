"""Facts that a summary states: found by patterns, or written down by a person (`reviewed_facts.json`)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from reflectune.core.durable import read_json
from reflectune.core.errors import UserError
from reflectune.core.types import AnswerType
from reflectune.examples.pocket.gallery.facts import Fact
from reflectune.examples.pocket.gallery.sources.reference_works import Article

_LIVING = frozenset("animal bird reptile insect plant flower fruit vegetable".split()) | {"sea animal"}
_EATEN = frozenset("fruit vegetable food drink plant".split())
_MADE = frozenset(
    "landmark building instrument device tool object vehicle boat aircraft game sport activity food drink".split()
)
_PLACE = r"(?:[A-Z][a-z]+[\w\-]*)(?:(?:-| )(?:[A-Z][a-z]+[\w\-]*))*"
_PLACES = rf"(?P<v>{_PLACE}(?:(?:, | and (?:the )?|, and (?:the )?){_PLACE})*)"
_NUMBERS = "two three four five six seven eight nine ten eleven twelve".split()
_NUMBER = rf"(?P<v>\d[\d,]*|{'|'.join(_NUMBERS)})"
_LANGUAGES = (
    "Ancient Greek|Old French|Middle English|Old English|Latin|Greek|French|Arabic|Sanskrit|Spanish|Japanese|Persian|"
    "Italian|Portuguese|Dutch|German|Malay|Hindi|Turkish|Tamil|Nahuatl"
)


@dataclass(frozen=True)
class Pattern:
    """A pattern of a relation in summaries.

    Attributes:
        relation: A key of `relations.RELATIONS`.
        pattern: Regular expression with the value as the group `v`.
        categories: Kinds of things that it applies to; empty: all.
        answer_type: InfoSeek's type of the value.
    """

    relation: str
    pattern: re.Pattern[str]
    categories: frozenset[str] = frozenset()
    answer_type: AnswerType = "string"


PATTERNS = (
    Pattern(
        "native_to",
        re.compile(rf"\b(?<!no )(?:native|endemic|indigenous) (?:only )?to (?:the )?(?:[a-z\-]+ ){{0,4}}?{_PLACES}"),
        _LIVING,
    ),
    Pattern(
        "origin",
        re.compile(rf"\b(?:originat(?:ed|es|ing) (?:in|from)|domesticated in) (?:the )?{_PLACES}"),
        _LIVING | _EATEN | _MADE,
    ),
    Pattern("family", re.compile(r"\b(?P<v>[A-Z][a-z]+(?:idae|aceae))\b"), _LIVING),
    Pattern("genus", re.compile(r"\b(?:in|of) the (?:\w+ )?genus (?P<v>[A-Z][a-z]+)\b"), _LIVING),
    Pattern("order", re.compile(r"\border (?P<v>[A-Z][a-z]+)\b"), _LIVING),
    Pattern("subfamily", re.compile(r"\bsubfamily (?P<v>[A-Z][a-z]+inae)\b"), _LIVING),
    Pattern(
        "species_count",
        re.compile(rf"\b{_NUMBER} (?:living |extant |known |surviving )?species\b"),
        _LIVING,
        "numerical",
    ),
    Pattern("diet", re.compile(r"\b(?P<v>(?:herbivor|omnivor|carnivor|insectivor|piscivor)(?:e|es|ous))\b"), _LIVING),
    Pattern(
        "other_name",
        re.compile(
            r"^[^.]{0,60}?\b(?:also|sometimes|commonly|colloquially) (?:called|known as|referred to as) (?:the |an? )?"
            r"[\"“]?(?P<v>[a-z][a-z\- ]{2,24}?)[\"”]?(?:,| or | and | is | are | in |;)"
        ),
    ),
    Pattern(
        "inventor",
        re.compile(
            r"\b(?:invented|developed|designed|patented|sculpted) by (?:the )?"
            r"(?:[a-z\-]+ |[A-Z][a-z]+ (?:engineer|sculptor|architect|inventor) )*"
            r"(?P<v>[A-Z]\w+(?: (?:de |van |von )?[A-Z][\w.]+){1,3})"
        ),
        _MADE,
    ),
    Pattern(
        "made_when",
        re.compile(
            r"\b(?:invented|completed|constructed|built|patented|erected|dedicated|devised)\b[^.;,]{0,40}?\b"
            r"(?:in|from|between) (?:early |late )?(?P<v>\d{4})\b"
        ),
        _MADE,
        "time",
    ),
    Pattern("word_origin", re.compile(rf"\bfrom (?:the )?(?P<v>{_LANGUAGES})\b"), frozenset()),
    Pattern("strings", re.compile(rf"\b{_NUMBER} strings\b"), frozenset({"instrument"}), "numerical"),
    Pattern(
        "players",
        re.compile(rf"\b(?:of|with|has|have|up to|between) {_NUMBER} players\b"),
        frozenset({"sport", "activity", "game"}),
        "numerical",
    ),
    Pattern("legs", re.compile(rf"\b{_NUMBER} (?:legs|arms|limbs)\b"), _LIVING, "numerical"),
    Pattern(
        "cuisine",
        re.compile(
            r"\b(?:an? |traditional )?(?P<v>Italian|Japanese|Chinese|French|Mexican|Indian|American|Spanish|German) "
            r"(?:[a-z\-]+ )?(?:dish|cuisine|food|drink|pastry|beverage)\b"
        ),
        frozenset({"food", "drink"}),
    ),
    Pattern(
        "city", re.compile(rf"\bin (?:the (?:city|centre) of )?(?P<v>{_PLACE}), {_PLACE}"), frozenset({"landmark"})
    ),
    Pattern(
        "country",
        re.compile(
            rf"\bin (?:the (?:city|centre) of )?{_PLACE}, (?P<v>Italy|France|India|Egypt|Brazil|Peru|Mexico|Jordan)"
        ),
        frozenset({"landmark"}),
    ),
    Pattern("planet_place", re.compile(r"\b(?P<v>\w+) planet from the Sun"), frozenset({"planet"})),
    Pattern(
        "height",
        re.compile(r"\b(?P<v>\d[\d,.]* (?:m|metres|meters|feet|ft))\b(?: \([^)]*\))? (?:high|tall|in height)"),
        frozenset({"landmark"}),
        "numerical",
    ),
    Pattern(
        "diameter",
        re.compile(r"\bdiameter(?: of|,)?(?: about)? (?P<v>\d[\d,.]* (?:km|kilometres))\b"),
        frozenset({"planet"}),
        "numerical",
    ),
    Pattern("domesticated_when", re.compile(r"\bdomesticat[^.]{5,60}?\b(?P<v>\d[\d,]* years ago|\d{4} BC)"), _LIVING),
)
"""All patterns, in the order in which a summary is searched."""


def text_facts(article: Article, category: str) -> Iterator[Fact]:
    """Return the facts of a summary by the patterns for this kind of thing, the first of each pattern.

    A value that is the article's own title, or a part of it, is left out.
    """
    for pattern in PATTERNS:
        if pattern.categories and category not in pattern.categories:
            continue
        match = pattern.pattern.search(article.summary)
        if match is None or _is_own_name(match["v"], article.title):
            continue
        answers = _answers(pattern, match["v"])
        if answers and len(answers[0].split()) <= 5:
            yield Fact(article.title, pattern.relation, answers, pattern.answer_type)


def _is_own_name(value: str, title: str) -> bool:
    plain = title.split(" (")[0].lower()
    return value.lower().rstrip("s") in (plain.rstrip("s"), plain)


def _answers(pattern: Pattern, value: str) -> tuple[str, ...]:
    """Return a value with other accepted answers: each of several places, a number's figure, other forms of a word."""
    if pattern.relation in ("native_to", "origin"):
        places = [place.strip() for place in re.split(r",? and (?:the )?|, ", value)]
        wrong = {"Cretaceous", "Paleolithic", "Western Christian", "Malesian", "Eastern"}
        return () if wrong & set(places) else tuple(dict.fromkeys([value, *places]))
    if pattern.answer_type == "numerical" and value in _NUMBERS:
        return (str(_NUMBERS.index(value) + 2), value)
    if pattern.relation == "diet":
        stem = re.sub(r"(?:e|es|ous)$", "", value)
        return tuple(dict.fromkeys((value, f"{stem}e", f"{stem}es", f"{stem}ous")))
    return (value,)


def reviewed_facts(article: Article) -> Iterator[Fact]:
    """Return the reviewed facts of an article: each has its own questions, and the summary states the answer.

    Raises:
        UserError: A row of the list is wrong.
    """
    for number, (question, held_out, *answers) in enumerate(reviewed_rows().get(article.title, ())):
        yield Fact(article.title, f"note{number + 1}", tuple(answers), asked=((question,), (held_out,)))


@cache
def reviewed_rows() -> dict[str, list[list[str]]]:
    """Read facts that a person wrote from summaries, by title: [question, held-out question, answer, …]."""
    path = Path(__file__).with_name("reviewed_facts.json")
    rows: dict[str, list[list[str]]] = read_json(path, "the list of reviewed facts")
    for title, facts in rows.items():
        for row in facts:
            if len(row) < 3 or not all("{it}" in text.lower() for text in row[:2]):
                raise UserError(f"{path}: {title}: {row} is not [question with {{it}}, the same, answer, …]")
    return rows

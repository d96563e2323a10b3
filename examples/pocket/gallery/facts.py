"""Facts that articles state about their subjects, as a relation and its value."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from reflectune.core.types import AnswerType, Entry, Evidence, Question, Section
from reflectune.data_builders.annotators.string import stated_answer
from reflectune.examples.pocket.gallery.sources.reference_works import Article, summary_section
from reflectune.formats.passages import split_passages

TOLERANCE = 0.1
"""Tolerance of a number, relative to the value, as in most of InfoSeek's ranges."""


@dataclass(frozen=True)
class Fact:
    """A fact about an article's subject.

    Attributes:
        title: Title of the article.
        relation: A key of `relations.RELATIONS`.
        answers: The value and other accepted names of it; of a number, with its unit.
        answer_type: InfoSeek's type of the answer.
        heading: Heading of the section of facts that states it; "" if the summary states it.
        sentence: Sentence of that section; "" if the summary states the fact.
        asked: The fact's own questions, `(train, held out)`, if `RELATIONS` has none.
    """

    title: str
    relation: str
    answers: tuple[str, ...]
    answer_type: AnswerType = "string"
    heading: str = ""
    sentence: str = ""
    asked: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())

    @property
    def range(self) -> tuple[float, float] | None:
        """Lowest and highest accepted value of a number; None for another type of answer."""
        if self.answer_type != "numerical":
            return None
        value = number(self.answers[0])
        low, high = sorted((value * (1 - TOLERANCE), value * (1 + TOLERANCE)))  # a value may be negative
        return low, high


def number(text: str) -> float:
    """Return the first number in a text, with `million` and `billion` and without thousands' commas.

    Example:
        >>> number("68.5 million people")
        68500000.0
    """
    match = re.search(r"-?\d[\d,]*(?:\.\d+)?", text)
    assert match is not None, text
    scale = next((by for word, by in (("million", 1e6), ("billion", 1e9)) if word in text), 1.0)
    return float(match[0].replace(",", "")) * scale


def entry_of(article: Article, facts: Sequence[Fact], images: tuple[str, ...] = ()) -> Entry:
    """Return an article as an entry: its summary as the first section, then its facts, a section for each heading."""
    sections = [summary_section(article)]
    for heading in dict.fromkeys(fact.heading for fact in facts if fact.heading):
        lines = dict.fromkeys(fact.sentence for fact in facts if fact.heading == heading)
        sections.append(Section(heading, " ".join(lines)))
    return Entry(article.id, article.title, article.url, article.summary, images, tuple(sections))


def evidence_of(fact: Fact, entry: Entry, cue: str = "") -> tuple[Evidence, ...]:
    """Return the sections that state a fact.

    The fact's own section states it if the project's string matching finds an accepted answer in one of its passages. A
    different section states it if such a passage also has a word of the relation.

    Args:
        fact: Fact about the entry's subject.
        entry: The article, as made by `entry_of`.
        cue: Pattern of the relation's words; "": no other section counts.
    """
    question = Question("", "", "", fact.answers, fact.range, fact.answer_type)
    section_of_fact = next(
        (i for i, section in enumerate(entry.sections) if section.title == (fact.heading or "Summary")), 0
    )
    stating = [passage for passage in split_passages(entry) if stated_answer(question, passage)]
    if section_of_fact not in {passage.section for passage in stating}:
        return ()
    pattern = re.compile(rf"\b(?:{cue})", re.IGNORECASE) if cue else None
    others = [passage.section for passage in stating if pattern and pattern.search(passage.text)]
    return tuple(Evidence(entry.id, section) for section in dict.fromkeys([section_of_fact, *others]))

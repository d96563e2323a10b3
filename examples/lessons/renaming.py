"""Rename entities in lessons, so that answers must be read from documents and can't be memorized."""

from __future__ import annotations

import random
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from reflectune.core.types import FollowUp
from reflectune.models.schemes.examples import PromptedExample

_WORD: Final = re.compile(r"(?<!\w)(?:\w+|\W)")
"""Possible start of a title: a whole word, or a character outside words. Titles are looked up by it."""
_WORD_CHARACTER: Final = re.compile(r"\w")


class TitleExchange:
    """A replacer of titles in texts by other titles with the same last word, which names the kind of thing.

    Args:
        titles: Titles to find and to draw from.
    """

    def __init__(self, titles: Iterable[str]) -> None:
        self._alike: dict[str, list[str]] = {}
        lengths: defaultdict[str, set[int]] = defaultdict(set)
        self._titles = {title for title in titles if title.strip()}
        for title in sorted(self._titles):
            self._alike.setdefault(_last_word(title), []).append(title)
            lengths[_first_word(title)].add(len(title))
        self._longest_first = {word: sorted(of_word, reverse=True) for word, of_word in lengths.items()}

    def exchanged(self, texts: Sequence[str], rng: random.Random) -> list[str]:
        """Return the texts with each title replaced by one drawn from those alike, perhaps itself; the same in all.

        Example:
            >>> exchange = TitleExchange(["Ulm Oak", "Vik Oak", "Elm Tower"])
            >>> exchange.exchanged(["Ulm Oak is old, as Elm Tower is.", "Ulm Oak"], random.Random(0))
            ['Vik Oak is old, as Elm Tower is.', 'Vik Oak']
        """
        met: dict[str, list[str]] = {}
        for title in dict.fromkeys(title for text in texts for _, title in self._found(text)):
            met.setdefault(_last_word(title), []).append(title)
        drawn = {
            title: replacement
            for word, titles in met.items()
            for title, replacement in zip(titles, rng.sample(self._alike[word], len(titles)), strict=True)
        }
        return [self._with_others(text, drawn) for text in texts]

    def _found(self, text: str) -> Iterator[tuple[int, str]]:
        """Yield the titles of a text with their positions: the longest at each position, none within another."""
        end = 0
        for word in _WORD.finditer(text):
            start = word.start()
            if start >= end and (title := self._title_at(text, start, word[0])):
                yield start, title
                end = start + len(title)

    def _with_others(self, text: str, drawn: Mapping[str, str]) -> str:
        parts, end = [], 0
        for start, title in self._found(text):
            parts += [text[end:start], drawn[title]]
            end = start + len(title)
        return "".join([*parts, text[end:]])

    def _title_at(self, text: str, start: int, word: str) -> str:
        """Return the longest title that begins there and ends with a word, or ""."""
        for length in self._longest_first.get(word, ()):
            title = text[start : start + length]
            if title in self._titles and not _WORD_CHARACTER.match(text, start + length):
                return title
        return ""


def renamed(lesson: PromptedExample, copies: int, exchange: TitleExchange, seed: int) -> list[PromptedExample]:
    """Return copies of a lesson with different titles. Equal copies are returned once.

    Args:
        lesson: The lesson. A title has the same replacement in all of its branches.
        copies: Number of copies.
        exchange: Replaces titles.
        seed: Seed of the draws, together with the lesson's id.
    """
    original = [
        lesson.question,
        lesson.documents,
        *lesson.branch_documents,
        *(branch.reply for branch in lesson.branches),
        *(text for later in lesson.follow_ups for text in (later.question, later.answer)),
    ]
    made: dict[tuple[str, ...], PromptedExample] = {}
    for number in range(copies):
        texts = exchange.exchanged(original, random.Random(f"{seed} {lesson.id} {number}"))
        question, documents, *others = texts
        shown, replies_and_rounds = _cut(others, len(lesson.branch_documents))
        replies, rounds = _cut(replies_and_rounds, len(lesson.branches))
        named = replace(
            lesson,
            id=f"{lesson.id} {number}",
            question=question,
            documents=documents,
            branch_documents=tuple(shown),
            branches=tuple(
                replace(branch, reply=reply) for branch, reply in zip(lesson.branches, replies, strict=True)
            ),
            follow_ups=tuple(map(FollowUp, rounds[::2], rounds[1::2])),
        )
        made.setdefault(tuple(texts), named)
    return list(made.values())


def _cut(texts: Sequence[str], count: int) -> tuple[Sequence[str], Sequence[str]]:
    return texts[:count], texts[count:]


def _first_word(title: str) -> str:
    word = _WORD.match(title)
    assert word  # a title isn't empty
    return word[0]


def _last_word(title: str) -> str:
    return title.split()[-1]

"""Lessons with other names in them: what is to be read from documents can't be learned by heart."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from reflectune.models.schemes.examples import PromptedExample


class TitleExchange:
    """Exchanges the titles in texts for other titles with the same last word, which says what a thing is.

    Args:
        titles: Those that are looked for, and drawn from.
    """

    def __init__(self, titles: Iterable[str]) -> None:
        self._alike: dict[str, list[str]] = {}
        for title in sorted({title for title in titles if title.strip()}):
            self._alike.setdefault(_last_word(title), []).append(title)
        longest_first = sorted((one for each in self._alike.values() for one in each), key=len, reverse=True)
        self._pattern = re.compile(rf"(?<!\w)(?:{'|'.join(map(re.escape, longest_first))})(?!\w)")

    def exchanged(self, texts: Sequence[str], rng: random.Random) -> list[str]:
        """The texts with one title for each of theirs, and no two for the same.

        Example:
            >>> exchange = TitleExchange(["Ulm Oak", "Vik Oak", "Elm Tower"])
            >>> exchange.exchanged(["Ulm Oak is old, as Elm Tower is.", "Ulm Oak"], random.Random(0))
            ['Vik Oak is old, as Elm Tower is.', 'Vik Oak']
        """
        met: dict[str, list[str]] = {}
        for title in dict.fromkeys(title for text in texts for title in self._pattern.findall(text)):
            met.setdefault(_last_word(title), []).append(title)
        drawn = {
            title: other
            for word, titles in met.items()
            for title, other in zip(titles, rng.sample(self._alike[word], len(titles)), strict=True)
        }
        return [self._pattern.sub(lambda match: drawn[match[0]], text) for text in texts]


def renamed(lesson: PromptedExample, copies: int, exchange: TitleExchange, seed: int) -> list[PromptedExample]:
    """A lesson under other names: with titles drawn so many times, and what comes out twice once.

    Args:
        lesson: Of any number of branches; a title has the same other name in all of them.
        copies: How many times.
        exchange: What exchanges titles.
        seed: Of the draws, with the lesson's id.
    """
    told = [lesson.question, lesson.documents, *lesson.branch_documents, *(branch.reply for branch in lesson.branches)]
    made: dict[tuple[str, ...], PromptedExample] = {}
    for number in range(copies):
        texts = exchange.exchanged(told, random.Random(f"{seed} {lesson.id} {number}"))
        question, documents, *shown_and_replies = texts
        replies = shown_and_replies[len(lesson.branch_documents) :]
        named = replace(
            lesson,
            id=f"{lesson.id} {number}",
            question=question,
            documents=documents,
            branch_documents=tuple(shown_and_replies[: len(lesson.branch_documents)]),
            branches=tuple(
                replace(branch, reply=reply) for branch, reply in zip(lesson.branches, replies, strict=True)
            ),
        )
        made.setdefault(tuple(texts), named)
    return list(made.values())


def _last_word(title: str) -> str:
    return title.split()[-1]

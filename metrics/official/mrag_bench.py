"""MRAG-Bench's score (arXiv 2410.08182): the letter of a multiple-choice reply, read as its program reads it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

LETTERS: Final = ("A", "B", "C", "D")
_FORMS: Final = (r"\(([A-D])\)", r"(?<= )([A-D])(?= )", r"^ ([A-D])\b")


def letter(reply: str) -> str:
    """Return the letter that a reply chooses, the last one of several; "" if there is none.

    A letter in parentheses counts before one between spaces. The official program asks a language model about other
    replies; here a leading letter counts, as in `B: a castle`.

    Example:
        >>> letter("The answer is (B), not C.")
        'B'
    """
    for mark in ",.!?;:'":
        reply = reply.strip(mark)
    found = (re.findall(form, f" {reply} ") for form in _FORMS)
    return str(next(filter(None, found), [""])[-1])


def accuracy(reply: str, references: Sequence[str]) -> float:
    """Return 1.0 if the letter that a reply chooses is an accepted answer, else 0.0."""
    return float(letter(reply) in references)

"""Replies to P_MCT: numbers of the documents to keep, most relevant first, and a summary of them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Problem = Literal["", "no_numbers", "out_of_range", "repeated"]

_REPLY = re.compile(r"\s*(\d+(?:\s*,\s*\d+)*)\s*\.?\s*(.*)", re.DOTALL)


@dataclass(frozen=True)
class MctReply:
    """Reply of a model to P_MCT.

    Attributes:
        keep: Numbers of the documents to keep, from 1, most relevant first; none if `problem` isn't "".
        summary: Summary of these; may be "".
        problem: Problem of the numbers: none is given, one is out of range, or one is repeated.
    """

    keep: tuple[int, ...]
    summary: str
    problem: Problem = ""


def write_reply(keep: Sequence[int], summary: str) -> str:
    """Return the reply to train on: `2, 1. The summary.`"""
    return f"{', '.join(map(str, keep))}. {summary}".strip()


def read_reply(text: str, documents: int) -> MctReply:
    """Read the reply of a model that was shown this many documents."""
    match = _REPLY.fullmatch(text)
    if match is None:
        return MctReply((), " ".join(text.split()), "no_numbers")
    keep = tuple(int(number) for number in match[1].split(","))
    summary = " ".join(match[2].split())
    if not all(1 <= number <= documents for number in keep):
        return MctReply((), summary, "out_of_range")
    if len(set(keep)) < len(keep):
        return MctReply((), summary, "repeated")
    return MctReply(keep, summary)

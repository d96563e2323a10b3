"""Cover match: does an accepted answer stand in a longer reply? Token-bounded, or as the papers' programs do it.

MI-RAG (arXiv 2509.00798, §4.1) and PMSR (§4.1) report it as CEM, for replies too long for exact match. Their substring
test finds "no" in "I do not know"; `mode="strict"` compares whole tokens. `match` is
Self-RAG's lenient test, in which case counts.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from typing import Literal

from reflectune.core.errors import UserError
from reflectune.core.types import Question
from reflectune.metrics.official import infoseek, pmsr

Mode = Literal["official", "strict"]

UNSPACED = (
    r"\u0e01-\u0e3a\u0e40-\u0e4e"  # Thai
    r"\u3005-\u3007\u3041-\u3096\u309d-\u309f\u30a1-\u30fa\u30fc-\u30ff\u31f0-\u31ff"  # kana and iteration marks
    r"\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"  # Han
)
"""Letters of scripts that put no spaces between words, as ranges of a regular expression's set: each is a token."""

VOWEL_SIGNS = "".join(
    chr(code)
    for first, last in ((0x0900, 0x109F), (0x1780, 0x17D3))
    for code in range(first, last + 1)
    if unicodedata.category(chr(code)) in ("Mn", "Mc") and not re.match(f"[{UNSPACED}]", chr(code))
)
"""Marks of the scripts from Devanagari to Khmer that spell a word as letters do; no `\\w` of a regular expression."""

_TOKEN = re.compile(rf"[{UNSPACED}]|(?:[^\W{UNSPACED}]|[{VOWEL_SIGNS}])+")
_NUMBER = re.compile(r"[-+]?\d*\.\d+|[-+]?\d+")
_ARTICLES = frozenset({"a", "an", "the"})


def cover_match(prediction: str, answers: Iterable[str], mode: Mode = "strict") -> int:
    """1 if the prediction contains an accepted answer, else 0.

    Args:
        prediction: The reply, of any length.
        answers: Accepted answers.
        mode: `strict` looks for the answer's tokens (letters and digits, caseless, without articles) side by side among
            the prediction's; Chinese, Japanese and Thai put no spaces between words, so there each letter is a token.
            An answer without a token is never covered. `official` looks for the lower-cased answer
            anywhere in the lower-cased prediction, as PMSR's program does.
    """
    if mode == "official":
        lowered = prediction.lower()
        return int(any(answer.lower() in lowered for answer in answers))
    text = spaced_tokens(prediction)
    return int(any((wanted := spaced_tokens(answer)) != " " and wanted in text for answer in answers))


def cover_one(prediction: str, question: Question, mode: Mode = "strict") -> float:
    """1.0 if the prediction covers the question's answer, else 0.0.

    A list joined by `&&` is covered if more than half of its parts are. A numerical question is right in `official`
    mode if any number of the prediction lies in the range; in `strict` mode by InfoSeek's own rule, which reads the
    first number or range, since a range can't stand in a text.

    Raises:
        UserError: The question has no answers, or is numerical and has no range.
    """
    if question.answer_type == "numerical":
        if question.range is None:
            raise UserError(f"question {question.id} is numerical but has no range; its data set must give one")
        if mode == "strict":
            return float(infoseek.numerical(prediction, question.range))
        low, high = question.range
        return float(any(low <= float(number) <= high for number in _NUMBER.findall(prediction)))
    if not question.answers:
        raise UserError(f"question {question.id} has no answers; leave it out of the scores")
    return float(any(_covers(prediction, answer, mode) for answer in question.answers))


def spaced_tokens(text: str) -> str:
    """The text's tokens, caseless, composed (NFKC) and without articles, each between spaces: " tower of london "."""
    tokens = _TOKEN.findall(unicodedata.normalize("NFKC", text).casefold())
    return " ".join(["", *(token for token in tokens if token not in _ARTICLES), ""])


def _covers(prediction: str, answer: str, mode: Mode) -> bool:
    if "&&" not in answer:
        return bool(cover_match(prediction, [answer], mode))
    parts = [part.strip() for part in answer.split("&&") if part.strip()]
    wanted = parts if mode == "strict" else [pmsr.normalise(part) for part in parts]
    return sum(cover_match(prediction, [part], mode) for part in wanted) * 2 > len(parts)


def match(prediction: str, answers: Iterable[str]) -> int:
    """1 if any answer is a substring of the prediction, else 0. Case counts, and "Paris" is found in "Parisian"."""
    return int(any(answer in prediction for answer in answers))

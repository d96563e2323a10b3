"""Cover match: test if a longer reply contains an accepted answer, by tokens or as the papers' programs do.

MI-RAG (arXiv 2509.00798, §4.1) and PMSR (§4.1) report it as CEM, for replies too long for exact match. Their substring
test finds "no" in "I do not know"; `mode="strict"` compares whole tokens.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Literal

from reflectune.core.errors import UserError
from reflectune.core.numerals import plain_numbers
from reflectune.core.tokens import tokenize
from reflectune.core.types import Question
from reflectune.metrics.official import infoseek, pmsr

Mode = Literal["official", "strict"]

_NUMBER = re.compile(r"[-+]?\d*\.\d+|[-+]?\d+")
_ARTICLES = frozenset({"a", "an", "the"})


def cover_match(prediction: str, answers: Iterable[str], mode: Mode = "strict") -> int:
    """Return 1 if the prediction contains an accepted answer, else 0.

    Args:
        prediction: The reply, of any length.
        answers: Accepted answers.
        mode: `strict` looks for the answer's tokens (`tokenize`, without articles) side by side among the prediction's.
            An answer without a token is never covered. `official` looks for the lower-cased answer anywhere in the
            lower-cased prediction, as PMSR's program does.
    """
    if mode == "official":
        lowered = prediction.lower()
        return int(any(answer.lower() in lowered for answer in answers))
    text = spaced_tokens(prediction)
    references = map(spaced_tokens, answers)
    return int(any(reference != " " and reference in text for reference in references))


def cover_one(prediction: str, question: Question, mode: Mode = "strict") -> float:
    """Return 1.0 if the prediction covers the question's answer, else 0.0.

    A list joined by `&&` is covered if more than half of its parts are. For a numerical question, `official` mode
    accepts any number of the prediction in the range. `strict` mode applies InfoSeek's rule to the first number or
    range, in any notation (`number_agrees`).

    Raises:
        UserError: The question has no answers, or is numerical and has no range.
    """
    if question.answer_type == "numerical":
        if question.range is None:
            raise UserError(f"question {question.id} is numerical but has no range; its data set must give one")
        if mode == "strict":
            return number_agrees(prediction, question.range)
        low, high = question.range
        return float(any(low <= float(number) <= high for number in _NUMBER.findall(prediction)))
    if not question.answers:
        raise UserError(f"question {question.id} has no answers; leave it out of the scores")
    return float(any(_covers(prediction, answer, mode) for answer in question.answers))


def number_agrees(text: str, answer_range: Sequence[float]) -> float:
    """Return 1.0 if the first number or range of a text agrees with [lowest, highest] by InfoSeek's rule, else 0.0.

    Numbers are read in any notation (`plain_numbers`). A text without one is wrong; officially it reads as [0, 0].
    """
    plain = plain_numbers(text)
    return float(any(map(str.isdigit, plain)) and infoseek.numerical(plain, answer_range))


def spaced_tokens(text: str) -> str:
    """Return the text's tokens (`tokenize`) without articles, each between spaces: " tower of london "."""
    return " ".join(["", *(token for token in tokenize(text) if token not in _ARTICLES), ""])


def _covers(prediction: str, answer: str, mode: Mode) -> bool:
    if "&&" not in answer:
        return bool(cover_match(prediction, [answer], mode))
    parts = [part.strip() for part in answer.split("&&") if part.strip()]
    references = parts if mode == "strict" else [pmsr.normalise(part) for part in parts]
    return sum(cover_match(prediction, [reference], mode) for reference in references) * 2 > len(parts)

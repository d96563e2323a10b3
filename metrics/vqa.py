"""VQA's soft accuracy over ten annotators, as VQA v2 and OK-VQA score it.

Written after the VQA evaluation that LAVIS carries, which it matches. Quirks are kept: only the prediction is
lower-cased and loses its articles; references lose punctuation only where the annotators disagree; at most 32 full
stops are deleted.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from reflectune.metrics.words import CONTRACTIONS, DIGITS

_PUNCTUATION = ';/[]"{}()=+\\_-><@`,?!'
_LONE_STOP = re.compile(r"\.(?!\d)")
_COMMA_IN_NUMBER = re.compile(r"\d,\d")
_ARTICLES = frozenset({"a", "an", "the"})
_STOPS_DELETED = 32


def soft_accuracy(prediction: str, answers: Sequence[str]) -> float:
    """Mean over annotators of min(1, matches among the others / 3), in [0, 1].

    With ten annotators, of whom m gave the prediction: 0, 0.3, 0.6, 0.9, then 1 for m = 0, 1, 2, 3, ≥ 4.

    Args:
        prediction: The answer given.
        answers: One answer an annotator, at least one.
    """
    if not answers:
        raise ValueError("expected at least one annotator's answer, found none")
    given = process_words(process_punctuation(re.sub(r"[\n\t]", " ", prediction).strip()))
    references = [process_punctuation(answer) for answer in answers] if len(set(answers)) > 1 else answers
    matches = [reference == given for reference in references]
    total = sum(matches)
    return sum(min(1.0, (total - match) / 3) for match in matches) / len(matches)


def percent(value: float) -> float:
    """A fraction of 1 in percent, with the two decimals that the official code prints."""
    return round(100 * value, 2)


def process_punctuation(text: str) -> str:
    """Deletes each mark that stands beside a space (every mark, where a number has a comma); others become spaces."""
    numeric = _COMMA_IN_NUMBER.search(text) is not None
    found = text
    for mark in _PUNCTUATION:
        beside_space = f"{mark} " in text or f" {mark}" in text
        found = found.replace(mark, "" if beside_space or numeric else " ")
    return _LONE_STOP.sub("", found, count=_STOPS_DELETED)


def process_words(text: str) -> str:
    """Lower case, digits for number words, no articles, contractions with their apostrophes, single spaces."""
    words = [DIGITS.get(word, word) for word in text.lower().split()]
    return " ".join(CONTRACTIONS.get(word, word) for word in words if word not in _ARTICLES)

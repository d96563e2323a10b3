"""VQA's soft accuracy over ten annotators, by which VQA v2 and OK-VQA are scored.

Written after the VQA evaluation in LAVIS, which it matches. Quirks are kept: only the prediction is lower-cased and
loses its articles; references lose punctuation only if the annotators disagree; at most 32 full stops are deleted.

LAVIS has the program of GT-Vision-Lab/VQA as it was until March 2021. The newer program (commit a013f00) gives
different scores. If the annotators disagree it rewrites references like the prediction; if they agree it rewrites
neither. "two" against nine times "two" and once "2" scores 1 there, and 0.3 here.

The number words and contractions that the VQA family of metrics rewrites are below, as E-VQA's and LAVIS's evaluators
list them (Antol et al. 2015). Odd entries are kept, since a score must equal the official one to the last digit.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from types import MappingProxyType

_PUNCTUATION = ';/[]"{}()=+\\_-><@`,?!'
_LONE_STOP = re.compile(r"\.(?!\d)")
_COMMA_IN_NUMBER = re.compile(r"\d,\d")
_ARTICLES = frozenset({"a", "an", "the"})
_STOPS_DELETED = 32
CANNOT_MATCH = (
    "answers that no prediction matches in VQA's metric, e.g. because of capital letters, which a prediction loses, "
    "or because there is only one annotator"
)
"""Explanation of scores with questions for which `can_match` is false."""


def soft_accuracy(prediction: str, answers: Sequence[str]) -> float:
    """Return the mean over annotators of min(1, matches among the others / 3), in [0, 1].

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


def can_match(answers: Sequence[str]) -> bool:
    """Return True if one of the annotators' answers, given as the prediction, scores above 0.

    An answer with a capital letter, an article or a number word never matches: the prediction loses these, the
    references keep them. With a single annotator none matches, since each is compared with the others.
    """
    return any(soft_accuracy(answer, answers) > 0 for answer in set(answers))


def process_punctuation(text: str) -> str:
    """Delete each punctuation mark next to a space (every mark, if a number has a comma); replace others by spaces."""
    numeric = _COMMA_IN_NUMBER.search(text) is not None
    cleaned = text
    for mark in _PUNCTUATION:
        is_next_to_space = f"{mark} " in text or f" {mark}" in text
        cleaned = cleaned.replace(mark, "" if is_next_to_space or numeric else " ")
    return _LONE_STOP.sub("", cleaned, count=_STOPS_DELETED)


def process_words(text: str) -> str:
    """Lower case, digits for number words, no articles, contractions with their apostrophes, single spaces."""
    words = [DIGITS.get(word, word) for word in text.lower().split()]
    return " ".join(CONTRACTIONS.get(word, word) for word in words if word not in _ARTICLES)


DIGITS = MappingProxyType(
    {"none": "0"}
    | {word: str(number) for number, word in enumerate("zero one two three four five six seven eight nine ten".split())}
)
"""Number words to digits; "none" counts as zero."""

VERDICTS = MappingProxyType({"entailment": "yes", "true": "yes", "contradiction": "no", "false": "no"})
"""Verdicts that E-VQA reads as yes and no, and VQA doesn't."""

_WRITTEN_OUT = """
    ain't aren't can't could've couldn't couldn't've didn't doesn't don't hadn't hadn't've hasn't haven't he'd he'd've
    he's how'd how'll how's I'd've I'm I've isn't it'd it'd've it'll ma'am mightn't mightn't've might've mustn't must've
    needn't not've o'clock oughtn't 'ow's'at shan't she'd've should've shouldn't shouldn't've somebody'd've somebody'll
    somebody's someone'd someone'd've someone'll someone's something'd something'd've something'll that's there'd
    there'd've there're there's they'd they'd've they'll they're they've 'twas wasn't we'd've we've weren't what'll
    what're what's what've when's where'd where's where've who'd who'd've who'll who's who've why'll why're why's won't
    would've wouldn't wouldn't've y'all y'all'll y'all'd've you'd you'd've you'll you're you've
"""


CONTRACTIONS = MappingProxyType(
    {word[:i] + word[i + 1 :]: word for word in _WRITTEN_OUT.split() for i, letter in enumerate(word) if letter == "'"}
    | {"somebody'd": "somebodyd"}
)
"""Contractions without one of their apostrophes, to the full form. The official lists reverse "somebody'd".

They also have "I'd've", "I'm" and "I've", which never apply: the evaluators lower-case first.
"""

"""HotpotQA's answer score: F1 of words, after SQuAD's normalization.

Written after `hotpot_evaluate_v1.py` of hotpotqa/hotpot. A quirk is kept: for "yes", "no" and "noanswer" F1 gives no
partial credit, so "yes, both" scores 0 against "yes". Of several accepted answers the best one counts; HotpotQA has
one. Scores of supporting facts are left out, since no pipeline names sentences.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from reflectune.metrics.official.infoseek import normalize_answer

_WHOLE = frozenset({"yes", "no", "noanswer"})
"""Normalised answers that are right as a whole or not at all."""


def f1(prediction: str, answers: Iterable[str]) -> float:
    """Return the highest F1 of a prediction's words against an accepted answer's, in [0, 1].

    Example:
        >>> f1("the Chief of Protocol of America", ["Chief of Protocol"])
        0.75
    """
    return max((_f1(normalize_answer(prediction), normalize_answer(answer)) for answer in answers), default=0.0)


def _f1(prediction: str, answer: str) -> float:
    if prediction != answer and (prediction in _WHOLE or answer in _WHOLE):
        return 0.0
    words, expected = prediction.split(), answer.split()
    same = (Counter(words) & Counter(expected)).total()
    return 2 * same / (len(words) + len(expected)) if same else 0.0

"""Self-RAG's lenient `match`: does an accepted answer stand in the text?"""

from __future__ import annotations

from collections.abc import Iterable


def match(prediction: str, answers: Iterable[str]) -> int:
    """1 if any answer is a substring of the prediction, else 0. Case counts, and "Paris" is found in "Parisian"."""
    return int(any(answer in prediction for answer in answers))

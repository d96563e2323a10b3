"""ROUGE-L by the library `rouge-score`, as in mRAG ("Elucidating the Design Space", §3)."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any


def rouge_l(prediction: str, references: Sequence[str]) -> float:
    """Return the F-measure of the longest common subsequence of words, the best over the references, in [0, 1].

    The library reads lower-cased ASCII letters and digits only: "Ōsaka" is "saka", and another script scores 0.

    Args:
        prediction: The answer given.
        references: Accepted answers, at least one.

    Raises:
        ValueError: No reference is given.
    """
    if not references:
        raise ValueError("expected at least one reference, found none")
    return float(scorer().score_multi(references, prediction)["rougeL"].fmeasure)


@functools.cache
def scorer() -> Any:
    """Return the library's scorer, made once."""
    from rouge_score.rouge_scorer import RougeScorer  # slow to import, and an extra

    return RougeScorer(["rougeL"])

"""Whether an answer is right, by the data set's own official metric, chosen by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from reflectune.core.errors import UserError
from reflectune.core.types import Question
from reflectune.metrics.scoring import metric_of_one

Correctness = Callable[[str, Question], float]
"""(answer, question) -> what the answer is worth, in [0, 1]."""


def find_metric(name: str) -> Correctness:
    """The correctness of an answer by this metric; an answer without a word is wrong, whatever the metric.

    Args:
        name: `infoseek`: exact match, or for numbers agreement with the range (official code); `evqa_exact`: what of
            E-VQA's score needs no model, exact match and the overlap of lists; `vqa`: soft accuracy over annotators.

    Returns:
        A pure function. It raises UserError for a question that lacks what the metric compares with.

    Raises:
        UserError: No metric has this name.
    """
    if name not in METRICS:
        raise UserError(f"unknown metric `{name}`; choose one of {', '.join(METRICS)}")
    worth = METRICS[name]

    def correctness(answer: str, question: Question) -> float:
        try:
            value = worth(answer, question)
        except ValueError as error:
            raise UserError(f"question {question.id} can't be scored: {error}; mend its answers") from error
        # Officially an empty answer to a numerical question reads as [0, 0], and can so be right.
        return value if answer.strip() else 0.0

    return correctness


METRICS: Final[Mapping[str, Correctness]] = {
    "infoseek": metric_of_one("infoseek"),
    "evqa_exact": metric_of_one("evqa_exact"),
    "vqa": metric_of_one("vqa"),
}
"""Metrics that need no other model; `derive_labels` can judge the same answers again by BEM or a language model."""

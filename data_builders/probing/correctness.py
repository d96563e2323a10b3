"""Whether an answer is right, by the data set's own official metric, chosen by name."""

from __future__ import annotations

from collections.abc import Callable

from reflectune.core.errors import UserError
from reflectune.core.types import Question
from reflectune.metrics.evqa import BemLogits
from reflectune.metrics.registry import find_metric_name, metric_of_one

Correctness = Callable[[str, Question], float]
"""(answer, question) -> what the answer is worth, in [0, 1]."""


def find_metric(name: str, bem: BemLogits | None = None) -> Correctness:
    """The correctness of an answer by this metric; an answer without a word is wrong, whatever the metric.

    Args:
        name: A metric of `reflectune.metrics.registry`.
        bem: The answer-equivalence model, for `evqa`.

    Returns:
        A pure function. It raises UserError for a question that lacks what the metric compares with.

    Raises:
        UserError: No metric has this name, or it is `evqa` and there is no `bem`.
    """
    worth = metric_of_one(find_metric_name(name), bem=bem)

    def correctness(answer: str, question: Question) -> float:
        try:
            value = worth(answer, question)
        except ValueError as error:
            raise UserError(f"question {question.id} can't be scored: {error}; mend its answers") from error
        # Officially an empty answer to a numerical question reads as [0, 0], and can so be right.
        return value if answer.strip() else 0.0

    return correctness
